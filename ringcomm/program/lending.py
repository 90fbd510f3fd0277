"""Proof that what a program lends is not written before every reader has read it.

A reader of a lent piece takes it at some step of its own. The writer may write that memory again only once it
*knows* that this step is over: because a slot it has taken since was put after it, by the reader or by someone who
knew. What the room in a FIFO would tell does not count (a connection may have more slots than the program asks for),
nor does time.

One loop of one length class stands for all: the steps that act on a piece come in the order (lag, index) whatever the
sizes, and those of other pieces may be missing (a chunk may be empty), so nothing they would tell may count either.
At the end of a program all that was lent has been read (the interpreter waits for it), so one call stands for many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringcomm.program.ops import ConnectionKind, Lend, Opcode, Ref, RefKind, ScheduleError, may_share_memory
from ringcomm.program.plan import FifoKey, Plan, PlannedStep

Clock = list[int]
"""Per rank, how many of its steps are known to be over."""


def refuse_unsafe_lending(plan: Plan) -> None:
    """Raises ScheduleError naming the step that writes, the one that lent, and the reader.

    The plan must be right otherwise.
    """
    for in_place in (False, True):
        enough = Lend.always if in_place else Lend.apart
        if any(p.step.lend >= enough for steps in plan.steps for p in steps):
            for ranks in _by_length(plan).values():
                _OneLoop(plan, ranks, in_place).run()


def _by_length(plan: Plan) -> dict[int, dict[int, list[PlannedStep]]]:
    """Length class -> rank -> its steps in the order in which they act on one piece."""
    found: dict[int, dict[int, list[PlannedStep]]] = defaultdict(lambda: defaultdict(list))
    for rank, steps in enumerate(plan.steps):
        for planned in sorted(steps, key=lambda p: p.step.lag):
            found[planned.length][rank].append(planned)
    return found


@dataclass
class _Fifo:
    """The writer's clock at each put, and by reader its number of steps up to the take of each."""

    puts: list[Clock] = field(default_factory=list)
    takes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class _Loan:
    planned: PlannedStep
    fifo: FifoKey
    put: int


class _OneLoop:
    """The steps of one length class, each rank as far as it can go, with room without end."""

    def __init__(self, plan: Plan, steps: dict[int, list[PlannedStep]], in_place: bool) -> None:
        self.plan, self.steps, self.in_place = plan, steps, in_place
        self.clocks: dict[int, Clock] = {rank: [0] * plan.ranks for rank in steps}
        self.fifos: dict[FifoKey, _Fifo] = defaultdict(_Fifo)
        self.loans: dict[tuple[int, Ref], list[_Loan]] = defaultdict(list)

    def run(self) -> None:
        runs = {rank: self._rank(rank) for rank in self.steps}
        while runs:
            for rank in [rank for rank, run in runs.items() if next(run, "ended") == "ended"]:
                del runs[rank]

    def _rank(self, rank: int) -> Iterator[str]:
        for planned in self.steps[rank]:
            while any(self._untaken(rank, key) == 0 for key in planned.receivers):
                yield "waits"
            self._act(rank, planned)

    def _untaken(self, rank: int, key: FifoKey) -> int:
        fifo = self.fifos[key]
        return len(fifo.puts) - len(fifo.takes[rank])

    def _act(self, rank: int, planned: PlannedStep) -> None:
        clock = self.clocks[rank]
        clock[rank] += 1
        for key in planned.receivers:
            fifo = self.fifos[key]
            clock[:] = map(max, clock, fifo.puts[len(fifo.takes[rank])])
            fifo.takes[rank].append(clock[rank])
        if planned.step.dst is not None and not self._keeps_value(rank, planned):
            self._refuse_if_lent(rank, planned, planned.step.dst)
        for key in planned.senders:
            self._lend(rank, planned, key)
            self.fifos[key].puts.append(list(clock))

    def _lend(self, rank: int, planned: PlannedStep, key: FifoKey) -> None:
        if planned.step.lend >= (Lend.always if self.in_place else Lend.apart):
            assert planned.step.lent is not None  # check.py
            cell = self._cell(rank, planned.step.lent)
            self.loans[rank, cell].append(_Loan(planned, key, len(self.fifos[key].puts)))

    def _cell(self, rank: int, ref: Ref) -> Ref:
        """The memory of a chunk: in place, that of IN may be an OUT chunk."""
        shared = may_share_memory(self.plan.collective, rank, self.plan.root, ref.index)
        if not self.in_place or ref.kind == RefKind.OUT or shared is None:
            return ref
        return Ref(RefKind.OUT, shared)

    def _keeps_value(self, rank: int, planned: PlannedStep) -> bool:
        """A copy of memory to itself: the own part of an in-place call."""
        step = planned.step
        return step.opcode == Opcode.copy and self._cell(rank, step.sources[0]) == step.dst

    def _refuse_if_lent(self, rank: int, planned: PlannedStep, dst: Ref) -> None:
        for loan in self.loans[rank, dst]:
            reader = self._reader_left_out(rank, loan)
            if reader is None:
                continue
            lent = loan.planned.step.lent
            what = f"{lent}, the same memory in an in-place call," if lent != dst else f"{lent}"
            raise ScheduleError(
                f"rank {rank}, step {planned.index} ({planned.step}): writes {dst} although step {loan.planned.index} "
                f"({loan.planned.step}) lent {what} to rank {reader} and nothing this rank has taken since shows that "
                f"rank {reader} has read it: its lend must be {'apart or ' if self.in_place else ''}never, "
                f"not {loan.planned.step.lend.name}"
            )

    def _reader_left_out(self, rank: int, loan: _Loan) -> int | None:
        """A reader of the lent slot whose take this rank does not know of."""
        kind, _, peer = loan.fifo
        readers = [peer] if kind == ConnectionKind.pair else [r for r in range(self.plan.ranks) if r != rank]
        for reader in readers:
            takes = self.fifos[loan.fifo].takes[reader]
            if len(takes) <= loan.put or self.clocks[rank][reader] < takes[loan.put]:
                return reader
        return None
