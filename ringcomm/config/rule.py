"""One rule of the policy: the keys of a line of `policy.<collective>`."""

# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does.
from __future__ import annotations

from dataclasses import dataclass, field

from ringcomm.config.keys import key, setting_fields
from ringcomm.config.values import Bytes, Text, Threshold, ThresholdKind, Whole, Words

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
