"""Plan: the programs of all ranks together, connections resolved. For tools and the verifier; no rank runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringcomm.program.check import check
from ringcomm.program.ops import (
    CUT,
    Collective,
    Connection,
    ConnectionKind,
    Program,
    Ref,
    RefKind,
    ScheduleError,
    Step,
)

# One FIFO of the group: (kind, writer, reader), reader -1 for a fan-out, which all others read.
FifoKey = tuple[ConnectionKind, int, int]


@dataclass(frozen=True)
class PlannedStep:
    """A step with its connections resolved; `length` numbers the length class of the chunks it names."""

    index: int
    step: Step
    length: int
    receivers: tuple[FifoKey, ...]
    senders: tuple[FifoKey, ...]


class Plan:
    """programs[i] is rank i's. Raises ScheduleError when they do not belong together or a step mixes lengths."""

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs:
            raise ScheduleError("programs: empty; a plan needs the program of every rank")
        first = programs[0]
        for rank, p in enumerate(programs):
            check(p)
            got = (p.collective.name, p.ranks, p.rank, p.root, p.slots)
            want = (first.collective.name, len(programs), rank, first.root, first.slots)
            if got != want:
                raise ScheduleError(
                    f"programs[{rank}]: (collective, ranks, rank, root, slots) is {got}, must be {want}"
                )
        self.programs = tuple(programs)
        self.collective: Collective = first.collective
        self.ranks = len(programs)
        self.root = first.root
        self.slots = first.slots
        self.lengths = self._count_lengths()
        self.max_lag = max(p.max_lag for p in programs)
        self.steps = tuple(tuple(_resolve(p, i, s) for i, s in enumerate(p.steps)) for p in programs)

    def _count_lengths(self) -> int:
        if self.collective not in CUT:
            return self.ranks**2 if self.collective == Collective.all_to_all else self.ranks
        counts = [max(p.nchunks_in, p.nchunks_out) for p in self.programs]
        for rank, count in enumerate(counts):
            # reduce and broadcast have ranks with one buffer only, never with none
            if count != counts[0]:
                raise ScheduleError(f"rank {rank} cuts the message into {count} chunks, rank 0 into {counts[0]}")
        return counts[0]


def length_class(program: Program, ref: Ref) -> int:
    """Chunks of one class have one length on all ranks whatever the sizes; chunks of two classes need not."""
    c, rank, n = program.collective, program.rank, program.ranks
    if c in CUT:
        return ref.index
    if c == Collective.all_to_all:
        return rank * n + ref.index if ref.kind == RefKind.IN else ref.index * n + rank
    whole = RefKind.IN if c in (Collective.all_gather, Collective.gather) else RefKind.OUT
    return rank if ref.kind == whole else ref.index


def fifo_text(key: FifoKey) -> str:
    kind, writer, reader = key
    return f"the fan-out of rank {writer}" if kind == ConnectionKind.fan_out else f"the pair {writer} -> {reader}"


def _resolve(p: Program, index: int, step: Step) -> PlannedStep:
    length = length_class(p, step.chunk)
    for ref in (*step.sources, *(() if step.dst is None else (step.dst,))):
        if ref.local and length_class(p, ref) != length:
            raise ScheduleError(
                f"rank {p.rank}, step {index} ({step}): {ref} need not have the length of the governing chunk "
                f"{step.chunk}"
            )
    receivers = tuple(_key(p, p.receivers[r.index], False) for r in step.sources if r.kind == RefKind.RECEIVER)
    senders = tuple(_key(p, p.senders[r.index], True) for r in step.senders)
    return PlannedStep(index, step, length, receivers, senders)


def _key(p: Program, c: Connection, sending: bool) -> FifoKey:
    if c.kind == ConnectionKind.fan_out:
        return (c.kind, p.rank if sending else c.peer, -1)
    return (c.kind, p.rank, c.peer) if sending else (c.kind, c.peer, p.rank)
