"""Builder: how a schedule's author writes one rank's program, one call a step."""

from __future__ import annotations

from collections.abc import Sequence

from ringcomm.program.check import check
from ringcomm.program.ops import (
    Connection,
    ConnectionKind,
    Lend,
    Opcode,
    Problem,
    Program,
    Ref,
    RefKind,
    ScheduleError,
    Step,
    chunk_counts,
    may_share_memory,
)


class Builder:
    """Collects the steps of one rank; `program()` checks and returns them.

    cut: into how many chunks all_reduce, broadcast and reduce cut their message (the same on every rank); the other
    collectives fix their chunks (docs/program.md). Every step method takes `lag` (loops it acts behind, default 0) and
    `chunk`, the governing chunk: default is the destination, else the first local source; a step without either must
    name one.

    Steps that put something on a sender take `lend`: when their readers may read the memory itself, if it is
    registered, instead of a slot. By default what is IN may be lent where no call can overwrite it (`Lend.always`) or
    in calls that are not in place (`Lend.apart`), what is OUT never. Saying more is a promise that the verifier checks.
    """

    def __init__(self, problem: Problem, cut: int = 1) -> None:
        self.problem = problem
        self._counts = chunk_counts(problem.collective, problem.ranks, problem.rank, problem.root, cut)
        self._steps: list[Step] = []
        self._senders: list[Connection] = []
        self._receivers: list[Connection] = []
        self._drain = False

    # Chunks and connections: each returns the Ref that steps name.

    def input(self, index: int = 0) -> Ref:
        return Ref(RefKind.IN, index)

    def output(self, index: int = 0) -> Ref:
        return Ref(RefKind.OUT, index)

    def pair_to(self, peer: int) -> Ref:
        """The sending end of the pair connection from this rank to `peer`."""
        return _entry(self._senders, RefKind.SENDER, Connection(ConnectionKind.pair, peer))

    def pair_from(self, peer: int) -> Ref:
        """The receiving end of the pair connection from `peer` to this rank."""
        return _entry(self._receivers, RefKind.RECEIVER, Connection(ConnectionKind.pair, peer))

    def fan_out(self) -> Ref:
        """The sending end of this rank's fan-out: every other rank must take (or skip) every slot put on it."""
        return _entry(self._senders, RefKind.SENDER, Connection(ConnectionKind.fan_out, -1))

    def fan_out_from(self, peer: int) -> Ref:
        """This rank's receiving end of the fan-out that `peer` writes."""
        return _entry(self._receivers, RefKind.RECEIVER, Connection(ConnectionKind.fan_out, peer))

    # Steps.

    def copy(self, source: Ref, dst: Ref, *, lag: int = 0) -> None:
        self._add(Opcode.copy, [source], dst, (), lag=lag)

    def send(self, source: Ref, *senders: Ref, lag: int = 0, lend: Lend | None = None) -> None:
        self._add(
            Opcode.send, [source], None, senders, lag=lag, lend=self._safe_to_lend(source) if lend is None else lend
        )

    def receive(self, receiver: Ref, dst: Ref, *, lag: int = 0) -> None:
        self._add(Opcode.receive, [receiver], dst, (), lag=lag)

    def forward(
        self,
        receiver: Ref,
        *senders: Ref,
        dst: Ref | None = None,
        chunk: Ref | None = None,
        lag: int = 0,
        lend: Lend = Lend.never,
    ) -> None:
        self._add(Opcode.forward, [receiver], dst, senders, chunk=chunk, lag=lag, lend=lend)

    def reduce(
        self, sources: Sequence[Ref], dst: Ref, *, finish: bool = False, chunk: Ref | None = None, lag: int = 0
    ) -> None:
        self._add(Opcode.reduce, sources, dst, (), finish=finish, chunk=chunk, lag=lag)

    def reduce_send(
        self,
        sources: Sequence[Ref],
        *senders: Ref,
        dst: Ref | None = None,
        finish: bool = False,
        chunk: Ref | None = None,
        lag: int = 0,
        lend: Lend = Lend.never,
    ) -> None:
        self._add(Opcode.reduce_send, sources, dst, senders, finish=finish, chunk=chunk, lag=lag, lend=lend)

    def skip(self, receiver: Ref, chunk: Ref, *, lag: int = 0) -> None:
        """Takes one slot unread; `chunk` is a chunk of this rank with the length of what is skipped."""
        self._add(Opcode.skip, [receiver], None, (), chunk=chunk, lag=lag)

    def drain(self) -> None:
        """The program ends only when its readers have taken everything: a root learns that the others were there."""
        self._drain = True

    def program(self) -> Program:
        """The finished program. Raises ScheduleError naming the step and the rule it breaks."""
        p = self.problem
        program = Program(
            p.collective,
            p.ranks,
            p.rank,
            p.root,
            *self._counts,
            steps=tuple(self._steps),
            senders=tuple(self._senders),
            receivers=tuple(self._receivers),
            slots=p.slots,
            drain=self._drain,
        )
        check(program)
        return program

    def _add(
        self,
        opcode: Opcode,
        sources: Sequence[Ref],
        dst: Ref | None,
        senders: Sequence[Ref],
        *,
        lag: int,
        finish: bool = False,
        chunk: Ref | None = None,
        lend: Lend = Lend.never,
    ) -> None:
        if chunk is None:
            chunk = dst if dst is not None else next((ref for ref in sources if ref.local), None)
        if chunk is None:
            raise ScheduleError(
                f"rank {self.problem.rank}, step {len(self._steps)} ({opcode.name}): chunk=None: a step that names no "
                "IN or OUT chunk must name a governing chunk"
            )
        self._steps.append(Step(opcode, chunk, tuple(sources), dst, tuple(senders), finish, lag, lend))

    def _safe_to_lend(self, source: Ref) -> Lend:
        """What holds for any schedule: IN is never written, but where it is the memory of some OUT."""
        if source.kind != RefKind.IN:
            return Lend.never
        p = self.problem
        shared = may_share_memory(p.collective, p.rank, p.root, source.index)
        return Lend.always if shared is None else Lend.apart


def _entry(table: list[Connection], kind: RefKind, connection: Connection) -> Ref:
    if connection not in table:
        table.append(connection)
    return Ref(kind, table.index(connection))


def in_rank_order(own: Ref, rank: int, received: Ref, peer: int) -> list[Ref]:
    """Two operands of a reduction, that of the lower rank first: at two ranks this is the order of docs/numerics.md."""
    return [own, received] if rank < peer else [received, own]


def local_program(problem: Problem) -> Program:
    """What every schedule does in a group of one rank: OUT 0 = IN 0."""
    b = Builder(problem)
    b.copy(b.input(0), b.output(0))
    return b.program()
