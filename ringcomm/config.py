"""The schema: frozen dataclasses whose fields are the keys. Reads no hardware, and no file that nobody named.

Where settings come from, first found: `pg_options` (`Options(...)`, a path, a shipped name or a dict), the environment
variable RINGCOMM_CONFIG (a path or a shipped name), the shipped `default`. Then single keys from their own environment
variables. No file in the current or home directory is ever looked for.
"""

# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does.
from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcomm.config_key import key, setting_fields
from ringcomm.config_net import Tcp, Verbs
from ringcomm.values import Bytes, Choice, Duration, Flag, Text, Threshold, ThresholdKind, Whole, Words
from ringcomm.values_nodes import Nodes, NodesKind

if TYPE_CHECKING:
    from ringcomm.topology import Topology

COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
)
CHOSEN = ("schedule", "inside", "across", "levels")
"""The keys of a rule that say what runs; shown last."""
KIB = 1024
LARGE_GROUP = 8
"""Ranks from which pair slots are smaller: their number grows with the square of the ranks."""


@dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """One line of `policy.<collective>`: conditions and the schedule they choose. The first rule that matches wins."""

    schedule: str = key(
        Text("the name of a schedule"),
        "",
        "The schedule's name: a shipped one or one from `schedules`. `hierarchical` needs `inside` and `across`.",
    )
    inside: str | None = key(
        Text("the name of a schedule"),
        None,
        "With `schedule: hierarchical`: what runs among the ranks of a node (hierarchical.md lists what can). In a "
        "group on one node it runs alone.",
    )
    across: str | None = key(
        Text("the name of a schedule"),
        None,
        "With `schedule: hierarchical`: what runs between nodes. In a group with one rank on each node it runs alone.",
    )
    levels: tuple[str, ...] = key(
        Words(("pod", "socket", "numa", "complex")),
        (),
        "With `schedule: hierarchical`: further levels than the nodes, as `topology.file` declares them. `across` runs "
        "on the outermost, `inside` on all others.",
    )
    max_bytes: Threshold | None = key(
        ThresholdKind(),
        None,
        "Matches messages up to this many bytes: the whole message (output of all_gather, input of reduce_scatter and "
        "scatter). `128KiB/ranks` divides by the size of the group. Not for all_to_all, whose ranks may hold different "
        "sizes, nor for barrier.",
    )
    ranks: int | None = key(
        Whole(1, 65536), None, "Matches groups of exactly this size. Excludes `min_ranks`, `max_ranks`."
    )
    min_ranks: int | None = key(Whole(1, 65536), None, "Matches groups of at least this size.")
    max_ranks: int | None = key(Whole(1, 65536), None, "Matches groups of at most this size.")
    nodes: int | None = key(
        Whole(1, 65536),
        None,
        "Matches groups that span exactly this many nodes: those that `topology` declares, else machines. Excludes "
        "`min_nodes`, `max_nodes`.",
    )
    min_nodes: int | None = key(Whole(1, 65536), None, "Matches groups that span at least this many nodes.")
    max_nodes: int | None = key(Whole(1, 65536), None, "Matches groups that span at most this many nodes.")
    slot: int | None = key(
        Bytes(64, 64 << 20, step=64),
        None,
        "How far a slot is filled; at most the capacity `memory.slot` (which is also the default).",
    )
    channels: int = key(Whole(1, 16), 1, "Independent lanes that carry disjoint bytes of the message.")
    where: str = field(default="", compare=False)
    inherited: bool = field(default=False, compare=False)
    """From the shipped default, not asked for: its slot gives way to a smaller `memory.slot`, which is no error."""

    def text(self) -> str:
        """The rule as one line of YAML, without its place."""
        shown = {
            f.name: f.metadata["kind"].show(getattr(self, f.name))
            for f in setting_fields(self)
            if getattr(self, f.name) != f.default
        }
        return (
            "{"
            + ", ".join(f"{name}: {value}" for name, value in sorted(shown.items(), key=lambda x: x[0] in CHOSEN))
            + "}"
        )


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Who drives the engine and how it waits."""

    workers: int | str = key(
        Whole(1, 64, auto=True),
        "auto",
        "Threads that move bytes, one channel each. auto: cores per rank on the node, at least 1, at most 8.",
        env="RINGCOMM_WORKERS",
    )
    spin: int | str = key(
        Duration(0, 10**9, auto=True),
        "auto",
        "How long a wait spins before it sleeps. auto: 80us where the ranks of a node fit its cores, else 0us.",
        env="RINGCOMM_SPIN",
    )
    yields: int = key(Whole(0, 10000), 30, "Timed yields before sleeping, where ranks exceed cores.")

    def workers_for(self, ranks_on_node: int, cores: int) -> int:
        """`workers` with auto resolved; cores as `discover.host.usable_cores` counts them."""
        return self.workers if isinstance(self.workers, int) else max(1, min(8, cores // max(1, ranks_on_node)))

    def spin_ns_for(self, ranks_on_node: int, cores: int) -> int:
        """`spin` in nanoseconds with auto resolved."""
        # A wake costs 15-50 us (measured, 2-core VM, 2026-11-29); 80 us of spin kept 2 ranks at 0.14 us in 3 of 3 runs.
        return self.spin if isinstance(self.spin, int) else (80_000 if ranks_on_node <= cores else 0)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Shared memory: for FIFOs, and what users register."""

    slots: int = key(Whole(2, 64), 4, "Slots of each FIFO.", agree=True)
    slot: int | str = key(
        Bytes(4 * KIB, 64 << 20, auto=True, step=4 * KIB),
        "auto",
        "Capacity of one slot. auto: 256KiB; for pairs in groups of 8 ranks and more 64KiB.",
        env="RINGCOMM_SLOT",
        agree=True,
    )
    limit: int = key(
        Bytes(1 << 20, 1 << 50),
        1 << 30,
        "Most shared memory one process may allocate; past it an error names this key.",
        env="RINGCOMM_MEMORY_LIMIT",
    )
    registered: int | str = key(
        Bytes(0, 1 << 46, auto=True),
        "auto",
        "Most registered memory of one process (docs/registered_memory.md), past which an error names this key; "
        "address space until it is used. auto: the machine's memory, at most 256GiB. What a process uses first "
        "decides.",
        env="RINGCOMM_MEMORY_REGISTERED",
    )

    def registered_limit(self) -> int:
        """`registered` in bytes with auto resolved."""
        if isinstance(self.registered, int):
            return self.registered
        # Every process of a node maps all peers' heaps: 256 of 256 GiB each still fit the 47 bits of an address.
        return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 256 << 30)

    def capacity(self, ranks: int, kind: str) -> int:
        """Bytes one slot can hold. kind: 'pair' or 'fan_out' (one writer, all others read: O(1) of them per rank)."""
        if isinstance(self.slot, int):
            return self.slot
        return 64 * KIB if kind == "pair" and ranks >= LARGE_GROUP else 256 * KIB


@dataclass(frozen=True, kw_only=True)
class Connections:
    """Which connection carries what."""

    within: str = key(Choice(("shm",)), "shm", "Between ranks of one node. shm: shared memory.", agree=True)
    across: str = key(
        Choice(("auto", "tcp")),
        "auto",
        "Between ranks of different nodes. auto: shared memory where they are on one machine all the same, else what "
        "`net` says. tcp: never shared memory, so that declared nodes of one machine are as apart as machines; TCP, "
        "unless `net` is verbs.",
        env="RINGCOMM_ACROSS",
        agree=True,
    )


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which rank is on which node, where you want to say so (docs/topology.md); at most one of the keys."""

    nodes: Nodes | None = key(
        NodesKind(), None, "The ranks of each node, by their numbers in the job: `[[0, 1], [2, 3]]`.", agree=True
    )
    ranks_per_node: int | None = key(
        Whole(1, 65536),
        None,
        "Node k holds the ranks from k times this number on; the last node may hold fewer.",
        env="RINGCOMM_RANKS_PER_NODE",
        agree=True,
    )
    file: str | None = key(
        Text("a path"),
        None,
        "A topology saved by `python -m ringcomm topo --save`, relative to this file. All ranks must have the same "
        "shape in it; path and the other facts may differ.",
        env="RINGCOMM_TOPOLOGY_FILE",
    )


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """How reductions round."""

    accumulate: str = key(
        Choice(("input", "float32")),
        "input",
        "Type in which 16-bit floats travel between ranks during a reduction. input: their own; a step adds in float32 "
        "and rounds. float32: they are rounded once, at the end (numerics.md says what it costs).",
        agree=True,
    )
    reproducible: bool = key(
        Flag(),
        False,
        "true: reductions combine the ranks in one fixed order with float32 accumulators and round once, so that bits "
        "depend on the ranks' values alone. Rules whose schedule has another order are passed over (numerics.md).",
        agree=True,
    )


@dataclass(frozen=True, kw_only=True)
class Debug:
    """What is logged."""

    level: str = key(
        Choice(("WARN", "INFO", "DEBUG")),
        "WARN",
        "INFO says once per group what it is made of and which rule chose which schedule; DEBUG adds two lines for "
        "each call. docs/logging.md shows both.",
        env="RINGCOMM_DEBUG",
    )
    file: str | None = key(
        Text("a path; %h is replaced by the host name, %p by the process id, %r by the rank"),
        None,
        "Where the log goes; standard error if not given. %h host name, %p process id, %r rank.",
        env="RINGCOMM_DEBUG_FILE",
    )
    flight_record: str | None = key(
        Text("the beginning of a path, which the rank in the job completes"),
        None,
        "Where each rank writes its flight record when a group fails (docs/hangs.md). Not given: where "
        "TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE says, else nowhere.",
        env="RINGCOMM_FLIGHT_RECORD",
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a group is made from, apart from what torch passes."""

    version: int = key(Whole(1, 1), 1, "Version of this schema.", agree=True)
    net: str = key(
        Choice(("auto", "tcp", "verbs")),
        "auto",
        "What goes between machines. auto: verbs (RDMA) where all ranks of a group can use it, else tcp; which, and "
        "why, is logged at INFO.",
        env="RINGCOMM_NET",
        agree=True,
    )
    schedules: tuple[str, ...] = field(
        default=(), metadata={"doc": "Files with your own schedules, relative to this file."}
    )
    policy: Mapping[str, tuple[PolicyRule, ...]] = field(default_factory=dict)
    progress: Progress = Progress()
    memory: Memory = Memory()
    connections: Connections = Connections()
    tcp: Tcp = Tcp()
    verbs: Verbs = Verbs()
    topology: Shape = Shape()
    numerics: Numerics = Numerics()
    debug: Debug = Debug()
    declared: Topology | None = None
    """What `topology.nodes` or `topology.file` holds."""
    origin: str = field(default="", compare=False)
    """What was read: a path, `shipped default`, or `pg_options`."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Dotted key -> place, for every value that is not a built-in default."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What stood over what; for the log of rank 0 at INFO, see `log_lines`."""

    def values(self) -> dict[str, str]:
        """Every single key (no policy) as text, by dotted name."""
        found = {}
        for section, part in (("", self), *((name, getattr(self, name)) for name in SECTIONS)):
            for f in setting_fields(part):
                value = getattr(part, f.name)
                found[dotted(section, f.name)] = "-" if value is None else f.metadata["kind"].show(value)
        return found

    def digest_parts(self) -> dict[str, str]:
        """What all ranks must have alike, by dotted key: the value where it is short, else a short sha of it."""
        shown = self.values()
        parts = {name: _short(shown[name]) for name in shown if _must_agree(name)}
        if self.topology.file is not None and self.declared is not None:
            parts["topology.file"] = f"{self.declared.describe()} ({self.declared.shape()})"
        parts |= {f"policy.{c}": _sha(*[rule.text() for rule in rules]) for c, rules in self.policy.items()}
        if self.schedules:
            parts["schedules"] = _sha(*[Path(path).read_text(encoding="utf-8") for path in self.schedules])
        return {name: parts[name] for name in sorted(parts)}

    def without_numerics(self) -> Config:
        """The same with the default `numerics`: what a job would do that asked for nothing special."""
        return replace(self, numerics=Numerics())

    def log_lines(self) -> list[str]:
        """For rank 0 at INFO: which configuration was read, and each setting that stood over another."""
        return [f"configuration: {self.origin}", *self.notes]

    def to_markdown(self) -> str:
        """The text of docs/configuration.md (the schema; it does not depend on this configuration's values)."""
        from ringcomm.config_docs import markdown

        return markdown()


SECTIONS = {
    "progress": Progress,
    "memory": Memory,
    "connections": Connections,
    "tcp": Tcp,
    "verbs": Verbs,
    "topology": Shape,
    "numerics": Numerics,
    "debug": Debug,
}


@dataclass(frozen=True)
class Options:
    """`pg_options=ringcomm.Options(config=...)`: a path, the name of a shipped configuration, or a dict."""

    config: str | os.PathLike[str] | Mapping[str, Any] | None = None


def dotted(section: str, name: str) -> str:
    """How a key is called; section '' holds those at the top."""
    return f"{section}.{name}" if section else name


def _must_agree(full: str) -> bool:
    section, _, name = full.rpartition(".")
    return any(f.name == name and f.metadata["agree"] for f in setting_fields(SECTIONS.get(section, Config)))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:40]}... ({_sha(text)})"


def _sha(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def shipped(name: str) -> Path | None:
    """The file of a shipped configuration ('default', 'single_node', with or without .yaml), or None."""
    stem = name.removesuffix(".yaml")
    here = Path(__file__).parent
    # Installed as package data; in a source tree they stand beside the package.
    for folder in (here / "configs", here.parent / "configs"):
        if stem.isidentifier() and (folder / f"{stem}.yaml").is_file():
            return folder / f"{stem}.yaml"
    return None


def shipped_names() -> list[str]:
    here = Path(__file__).parent
    return sorted({p.stem for folder in (here / "configs", here.parent / "configs") for p in folder.glob("*.yaml")})


def load(options: object = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration for a group.

    options: what the user passed as `pg_options` (see the module text), or None. environ: os.environ unless given.
    Raises ConfigError naming key, value, what is allowed and the place.
    """
    from ringcomm.config_load import load as load_

    return load_(options, os.environ if environ is None else environ)
