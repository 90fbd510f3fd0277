"""Replay: runs the programs of all ranks symbolically over FIFOs with a given number of slots, several calls in a row.

A step waits for everything it names, so which rank runs first cannot change what is put where: one replay stands for
every interleaving. Ranks need not end a call together: one may be a call ahead, as in a real group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ringcomm.program.ops import Collective, ConnectionKind, Opcode, RefKind, ScheduleError, may_share_memory
from ringcomm.program.plan import FifoKey, Plan, PlannedStep, fifo_text
from ringcomm.program.values import Values


@dataclass
class Slot:
    call: int
    length: int
    loop: int
    value: int
    step: int
    turn: int


@dataclass
class Fifo:
    """All slots ever put, and for each reader how many it took; its room is up to the slowest reader.

    takes[reader]: (step, turn) of each take, in order.
    """

    key: FifoKey
    taken: dict[int, int]
    takes: dict[int, list[tuple[int, int]]]
    puts: list[Slot] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def full(self, slots: int) -> bool:
        return len(self.puts) - min(self.taken.values()) >= slots


@dataclass
class Memory:
    """One rank's OUT of one call: per (chunk, loop) the value and the step that wrote it. IN is implied."""

    out: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


@dataclass
class Position:
    """Where a rank is, for messages; `fifo` is what it waits for, None while it runs."""

    call: int
    planned: PlannedStep
    loop: int
    fifo: Fifo | None = None


class Replay:
    """plans: one per call, all of one group; loops[k][c]: loops of the chunks of length class c in call k."""

    def __init__(self, plans: Sequence[Plan], loops: Sequence[Sequence[int]], slots: int) -> None:
        self.plans, self.loops, self.slots = plans, loops, slots
        self.ranks = plans[0].ranks
        self.values = Values(self.ranks)
        self.made: dict[int, tuple[int, PlannedStep]] = {}
        """(rank, step) that first made a value by reducing; for messages."""
        self.memory = [[Memory() for _ in range(self.ranks)] for _ in plans]
        self.fifos: dict[FifoKey, Fifo] = {}
        self.positions: list[Position | None] = [None] * self.ranks
        self._runnable: deque[int] = deque(range(self.ranks))

    def run(self) -> None:
        """Raises ScheduleError on a deadlock, a wrong slot, a rule broken on the way, or a slot left at the end."""
        runs = [self._run_rank(rank) for rank in range(self.ranks)]
        ended = [False] * self.ranks
        while self._runnable:
            rank = self._runnable.popleft()
            if next(runs[rank], "ended") == "ended":
                ended[rank] = True
                self.positions[rank] = None
        if not all(ended):
            raise ScheduleError(self._deadlock_text(ended))
        self._refuse_left_slots()

    def _run_rank(self, rank: int) -> Iterator[str]:
        for call, plan in enumerate(self.plans):
            loops = self.loops[call]
            todo = [(p, p.step.lag, loops[p.length]) for p in plan.steps[rank]]
            last = max((lag + count for _, lag, count in todo if count), default=0)
            for turn in range(last):
                for planned, lag, count in todo:
                    loop = turn - lag
                    if not 0 <= loop < count:
                        continue
                    while (fifo := self._blocking(rank, planned)) is not None:
                        fifo.waiting.append(rank)
                        self.positions[rank] = Position(call, planned, loop, fifo)
                        yield "waits"
                    self._act(rank, call, planned, loop)

    def _fifo(self, key: FifoKey) -> Fifo:
        fifo = self.fifos.get(key)
        if fifo is None:
            kind, writer, reader = key
            readers = [reader] if kind == ConnectionKind.pair else [r for r in range(self.ranks) if r != writer]
            fifo = self.fifos[key] = Fifo(key, dict.fromkeys(readers, 0), {r: [] for r in readers})
        return fifo

    def _blocking(self, rank: int, planned: PlannedStep) -> Fifo | None:
        for key in planned.receivers:
            fifo = self._fifo(key)
            if fifo.taken[rank] == len(fifo.puts):
                return fifo
        for key in planned.senders:
            fifo = self._fifo(key)
            if fifo.full(self.slots):
                return fifo
        return None

    def _act(self, rank: int, call: int, planned: PlannedStep, loop: int) -> None:
        step = planned.step
        taken = iter(planned.receivers)
        operands = []
        for ref in step.sources:
            if ref.kind == RefKind.RECEIVER:
                operands.append(self._take(rank, call, planned, loop, next(taken)))
            else:
                operands.append(self._read(rank, call, planned, loop, ref.kind, ref.index))
        value = operands[0]
        if step.opcode in (Opcode.reduce, Opcode.reduce_send):
            try:
                value = self.values.reduce(operands, step.finish)
            except ValueError as rule:
                raise self._error(rank, call, planned, loop, str(rule)) from None
            self.made.setdefault(value, (rank, planned))
        if step.dst is not None:
            self.memory[call][rank].out[(step.dst.index, loop)] = (value, planned.index)
        for key in planned.senders:
            fifo = self.fifos[key]
            fifo.puts.append(Slot(call, planned.length, loop, value, planned.index, loop + step.lag))
            self._wake(fifo)

    def _take(self, rank: int, call: int, planned: PlannedStep, loop: int, key: FifoKey) -> int:
        fifo = self.fifos[key]
        slot = fifo.puts[fifo.taken[rank]]
        if (slot.call, slot.length, slot.loop) != (call, planned.length, loop):
            other = f" of call {slot.call}" if slot.call != call else ""
            raise self._error(
                rank,
                call,
                planned,
                loop,
                f"the next slot of {fifo_text(key)} was put by step {slot.step} of rank {key[1]}{other}, which sent "
                f"chunk {self._chunk_text(slot.call, slot.length)} of loop {slot.loop}; expected here: chunk "
                f"{self._chunk_text(call, planned.length)} of loop {loop}",
            )
        fifo.taken[rank] += 1
        fifo.takes[rank].append((planned.index, loop + planned.step.lag))
        self._wake(fifo)
        return slot.value

    def _read(self, rank: int, call: int, planned: PlannedStep, loop: int, kind: RefKind, index: int) -> int:
        out = self.memory[call][rank].out
        if kind == RefKind.IN:
            plan = self.plans[call]
            shared = may_share_memory(plan.collective, rank, plan.root, index)
            written = None if shared is None else out.get((shared, loop))
            if written is not None:
                rule = (
                    f"reads IN {index} after step {written[1]} wrote OUT {shared}, the same memory in an in-place call"
                )
                raise self._error(rank, call, planned, loop, rule)
            return self.values.input(rank, index)
        written = out.get((index, loop))
        if written is None:
            raise self._error(rank, call, planned, loop, f"reads OUT {index} before any step wrote it")
        return written[0]

    def _wake(self, fifo: Fifo) -> None:
        self._runnable.extend(fifo.waiting)
        fifo.waiting.clear()

    # Messages.

    def _chunk_text(self, call: int, length: int) -> str:
        if self.plans[call].collective == Collective.all_to_all:
            return f"{length // self.ranks} to {length % self.ranks}"
        return str(length)

    def _error(self, rank: int, call: int, planned: PlannedStep, loop: int, rule: str) -> ScheduleError:
        return ScheduleError(f"{self._where(rank, call, planned, loop)}: {rule}")

    def _where(self, rank: int, call: int, planned: PlannedStep, loop: int) -> str:
        name = f"rank {rank}, step {planned.index} ({planned.step}), chunk {planned.step.chunk}, loop {loop}"
        return name + (f", call {call}" if len(self.plans) > 1 else "")

    def _refuse_left_slots(self) -> None:
        for fifo in self.fifos.values():
            for reader, taken in fifo.taken.items():
                if taken < len(fifo.puts):
                    slot = fifo.puts[taken]
                    raise ScheduleError(
                        f"rank {fifo.key[1]}, step {slot.step}, chunk {self._chunk_text(slot.call, slot.length)}, loop "
                        f"{slot.loop}, call {slot.call}: the slot put on {fifo_text(fifo.key)} is never taken by rank "
                        f"{reader} ({len(fifo.puts) - taken} left at the end)"
                    )

    def _deadlock_text(self, ended: Sequence[bool]) -> str:
        lines, waits_for = [], {}
        for rank, at in enumerate(self.positions):
            if at is None or at.fifo is None:
                continue
            writer = at.fifo.key[1]
            if rank == writer:
                peer = min(at.fifo.taken, key=lambda reader: at.fifo.taken[reader])  # type: ignore[union-attr]
                what = f"room on {fifo_text(at.fifo.key)}, whose slowest reader is rank {peer}"
            else:
                peer, what = writer, f"a slot from rank {writer} on {fifo_text(at.fifo.key)}"
            gone = f" (rank {peer} has ended its program)" if ended[peer] else ""
            waits_for[rank] = peer
            lines.append(f"  {self._where(rank, at.call, at.planned, at.loop)} waits for {what}{gone}")
        path = [min(waits_for)]
        while path[-1] in waits_for and path[-1] not in path[:-1]:
            path.append(waits_for[path[-1]])
        chain = " -> ".join(f"rank {rank}" for rank in path)
        return f"deadlock with {self.slots} slots; who waits for whom: {chain}\n" + "\n".join(lines)
