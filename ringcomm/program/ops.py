"""Opcodes, Step, Program, Problem and what is legal, as tables. No algorithm lives here.

The numbers are those of ringcomm_ext/core/types.h; a test reads that header and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ringcomm.errors import RingcommError

DEFAULT_SLOTS = 4


class ScheduleError(RingcommError, ValueError):
    """A program or schedule that breaks a rule; the message names rank, step, chunk and the rule."""


class Collective(IntEnum):
    """Collectives by their torch.distributed names. The last three name requests only: no program has them."""

    all_reduce = 0
    broadcast = 1
    reduce = 2
    all_gather = 3
    reduce_scatter = 4
    all_to_all = 5
    gather = 6
    scatter = 7
    barrier = 8
    send = 9
    recv = 10


class Opcode(IntEnum):
    copy = 0
    send = 1
    receive = 2
    forward = 3
    reduce = 4
    reduce_send = 5
    skip = 6


class RefKind(IntEnum):
    IN = 0
    OUT = 1
    RECEIVER = 2
    SENDER = 3


class ConnectionKind(IntEnum):
    pair = 0
    fan_out = 1


class Lend(IntEnum):
    """When a step's readers may read its memory in place instead of a slot (docs/registered_memory.md)."""

    never = 0
    apart = 1
    """In calls whose inputs and outputs lie apart."""
    always = 2
    """In every call, in place too."""


WITH_PROGRAM = frozenset(Collective(i) for i in range(8))
ROOTED = frozenset({Collective.broadcast, Collective.reduce, Collective.gather, Collective.scatter})
REDUCING = frozenset({Collective.all_reduce, Collective.reduce, Collective.reduce_scatter})
# These cut one message into as many chunks as the schedule likes; for the others the count follows from the ranks.
CUT = frozenset({Collective.all_reduce, Collective.broadcast, Collective.reduce})


@dataclass(frozen=True)
class Ref:
    """A chunk (IN, OUT) or an entry of the program's connection tables (RECEIVER, SENDER)."""

    kind: RefKind
    index: int

    def __str__(self) -> str:
        return f"{self.kind.name} {self.index}" if self.local else f"{self.kind.name.lower()} {self.index}"

    @property
    def local(self) -> bool:
        return self.kind in (RefKind.IN, RefKind.OUT)


@dataclass(frozen=True)
class Connection:
    """One end of a one-way connection. peer: a pair's other end; a fan-out's writer, or -1 in the sender table."""

    kind: ConnectionKind
    peer: int


@dataclass(frozen=True)
class Step:
    """One instruction; `chunk` is the governing chunk whose length decides in which loops the step acts."""

    opcode: Opcode
    chunk: Ref
    sources: tuple[Ref, ...]
    dst: Ref | None = None
    senders: tuple[Ref, ...] = ()
    finish: bool = False
    lag: int = 0
    lend: Lend = Lend.never

    @property
    def lent(self) -> Ref | None:
        """The memory its readers would be shown: the destination, or what is sent. None: it is in slots only."""
        return self.dst if self.dst is not None or self.opcode != Opcode.send else self.sources[0]

    def __str__(self) -> str:
        words = [self.opcode.name, " + ".join(map(str, self.sources))]
        if self.dst is not None:
            words.append(f"-> {self.dst}")
        if self.senders:
            words.append(f"=> {', '.join(map(str, self.senders))}")
        return " ".join(words)


@dataclass(frozen=True)
class Program:
    """One rank's steps, and the ends of connections they name (refs RECEIVER/SENDER i are indices into these)."""

    collective: Collective
    ranks: int
    rank: int
    root: int | None
    nchunks_in: int
    nchunks_out: int
    steps: tuple[Step, ...]
    senders: tuple[Connection, ...] = ()
    receivers: tuple[Connection, ...] = ()
    slots: int = DEFAULT_SLOTS
    drain: bool = False
    """Its end waits until the readers have taken everything."""

    @property
    def max_lag(self) -> int:
        return max((step.lag for step in self.steps), default=0)


@dataclass(frozen=True)
class Problem:
    """What a schedule is asked for. Ranks and root count within the group; root is None where there is none."""

    collective: Collective
    ranks: int
    rank: int
    root: int | None = None
    slots: int = DEFAULT_SLOTS

    def __post_init__(self) -> None:
        check_group(self.collective, self.ranks, self.rank, self.root)
        if self.slots < 1:
            raise ScheduleError(f"slots={self.slots}: must be at least 1")


def check_group(collective: Collective, ranks: int, rank: int, root: int | None) -> None:
    if collective not in WITH_PROGRAM:
        raise ScheduleError(
            f"collective={collective.name}: no program; allowed: {', '.join(c.name for c in sorted(WITH_PROGRAM))}"
        )
    if ranks < 1:
        raise ScheduleError(f"ranks={ranks}: must be at least 1")
    if not 0 <= rank < ranks:
        raise ScheduleError(f"rank={rank}: must be in 0..{ranks - 1}")
    if collective in ROOTED and (root is None or not 0 <= root < ranks):
        raise ScheduleError(f"root={root}: {collective.name} needs a root in 0..{ranks - 1}")
    if collective not in ROOTED and root is not None:
        raise ScheduleError(f"root={root}: {collective.name} has no root; must be None")


@dataclass(frozen=True)
class Rule:
    """What one opcode may have; (least, most), most None = no limit."""

    local: tuple[int, int | None]
    received: tuple[int, int | None]
    sources: tuple[int, int | None]
    dst: tuple[int, int | None]
    senders: tuple[int, int | None]
    finish: bool = False


LEGAL: dict[Opcode, Rule] = {
    Opcode.copy: Rule(local=(1, 1), received=(0, 0), sources=(1, 1), dst=(1, 1), senders=(0, 0)),
    Opcode.send: Rule(local=(1, 1), received=(0, 0), sources=(1, 1), dst=(0, 0), senders=(1, None)),
    Opcode.receive: Rule(local=(0, 0), received=(1, 1), sources=(1, 1), dst=(1, 1), senders=(0, 0)),
    Opcode.forward: Rule(local=(0, 0), received=(1, 1), sources=(1, 1), dst=(0, 1), senders=(1, None)),
    Opcode.reduce: Rule(
        local=(0, None), received=(0, None), sources=(2, None), dst=(1, 1), senders=(0, 0), finish=True
    ),
    Opcode.reduce_send: Rule(
        local=(0, None), received=(0, None), sources=(2, None), dst=(0, 1), senders=(1, None), finish=True
    ),
    Opcode.skip: Rule(local=(0, 0), received=(1, 1), sources=(1, 1), dst=(0, 0), senders=(0, 0)),
}


def fixed_chunks(collective: Collective, ranks: int, rank: int, root: int | None) -> tuple[int, int]:
    """(nchunks_in, nchunks_out) where the collective fixes them; refuses those that cut one message."""
    n, at_root = ranks, rank == root
    table = {
        Collective.all_gather: (1, n),
        Collective.reduce_scatter: (n, 1),
        Collective.all_to_all: (n, n),
        Collective.gather: (1, n if at_root else 0),
        Collective.scatter: (n if at_root else 0, 1),
    }
    if collective not in table:
        raise ScheduleError(f"collective={collective.name}: its chunk count is the schedule's choice")
    return table[collective]


def chunk_counts(collective: Collective, ranks: int, rank: int, root: int | None, cut: int = 1) -> tuple[int, int]:
    """(nchunks_in, nchunks_out) of one rank; `cut` counts the parts of the message where the schedule chooses them."""
    if collective not in CUT:
        return fixed_chunks(collective, ranks, rank, root)
    has_in = collective != Collective.broadcast or rank == root
    has_out = collective != Collective.reduce or rank == root
    return (cut if has_in else 0, cut if has_out else 0)


def may_share_memory(collective: Collective, rank: int, root: int | None, in_chunk: int) -> int | None:
    """The OUT chunk that may be the very memory of IN chunk `in_chunk` (in-place calls), or None."""
    if collective in CUT:
        return in_chunk
    if collective == Collective.all_gather or (collective == Collective.gather and rank == root):
        return rank
    if collective == Collective.reduce_scatter or (collective == Collective.scatter and rank == root):
        return 0 if in_chunk == rank else None
    return None
