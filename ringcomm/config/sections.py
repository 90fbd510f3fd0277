"""The sections of the configuration, but for `policy` and `tcp`: frozen dataclasses whose fields are the keys."""

# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does.
from __future__ import annotations

import os
from dataclasses import dataclass

from ringcomm.config.keys import key
from ringcomm.config.values import Bytes, Choice, Duration, Flag, Text, Whole
from ringcomm.config.values_nodes import Nodes, NodesKind

KIB = 1024
LARGE_GROUP = 8
"""Ranks from which pair slots are smaller: their number grows with the square of the ranks."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Who drives the engine and how it waits."""

    workers: int | str = key(
        Whole(1, 64, auto=True),
        "auto",
        "Threads that move bytes, one channel each. auto: cores per rank on the node, at least 1, at most 8. "
        "What a process's first group says holds for all.",
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
        "Most shared memory one process may allocate; past it an error names this key. What a process's "
        "first group says holds for all.",
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
        "each call. docs/logging.md shows both. What a process's first group says holds for all.",
        env="RINGCOMM_DEBUG",
    )
    file: str | None = key(
        Text("a path; %h is replaced by the host name, %p by the process id, %r by the rank"),
        None,
        "Where the log goes; standard error if not given. %h host name, %p process id, %r rank. As for the "
        "level, the first group decides.",
        env="RINGCOMM_DEBUG_FILE",
    )
    flight_record: str | None = key(
        Text("the beginning of a path, which the rank in the job completes"),
        None,
        "Where each rank writes its flight record when a group fails (docs/hangs.md). Not given: where "
        "TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE says, else nowhere.",
        env="RINGCOMM_FLIGHT_RECORD",
    )
