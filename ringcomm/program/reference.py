"""The numpy executor that defines the opcodes: all ranks in one process, real data, real FIFOs. Clear, never fast.

It shares no code with the verifier, so that each can catch the other's mistakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from ringcomm.program.ops import ConnectionKind, Lend, Opcode, Program, Ref, RefKind, ScheduleError, Step

Array = npt.NDArray[Any]
CHUNK_ALIGNMENT = 64  # bytes

OPS = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@dataclass
class Call:
    """One collective on all ranks. ins[r], outs[r]: rank r's chunks, 1-d arrays of one dtype; views of one array where
    the call is in place. outs are written. piece: elements per slot. op: a key of OPS."""

    programs: Sequence[Program]
    ins: Sequence[Sequence[Array]]
    outs: Sequence[Sequence[Array]]
    piece: int
    op: str = "sum"


def cut(message: Array, nchunks: int) -> list[Array]:
    """Views of a 1-d message cut as the data plane cuts it: whole 64-byte units, the last ones shorter or empty."""
    per_unit = max(1, CHUNK_ALIGNMENT // message.itemsize)
    length = ceil(ceil(len(message) / nchunks) / per_unit) * per_unit
    return [message[i * length : (i + 1) * length] for i in range(nchunks)]


def execute(calls: Sequence[Call], slots: int | None = None, rng: np.random.Generator | None = None) -> None:
    """Runs the calls one after another on the same connections; a rank may be a call ahead of another.

    slots: per FIFO, default the programs' own. rng: ranks run in random order and stop at random, and what a program
    may lend is lent: the slot is a view of the memory, so that a write too early shows in the reader's result.
    Raises ScheduleError on a deadlock, on a slot whose size is not the step's, and on slots left at the end.
    """
    if slots is None:
        slots = min(p.slots for call in calls for p in call.programs)
    ranks = len(calls[0].programs)
    fifos: dict[tuple[ConnectionKind, int, int], deque[Array]] = {}
    running = {rank: _run_rank(rank, calls, fifos, slots, rng is not None) for rank in range(ranks)}
    while running:
        moved = False
        order = list(running.items())
        for rank, run in order if rng is None else [order[i] for i in rng.permutation(len(order))]:
            for acted in run:
                moved |= acted
                if not acted or (rng is not None and rng.random() < 0.3):
                    break
            else:
                del running[rank]
                moved = True
        if not moved:
            raise ScheduleError(f"deadlock with {slots} slots: ranks {sorted(running)} wait")
    for (kind, writer, reader), slots_left in fifos.items():
        if slots_left:
            raise ScheduleError(f"{len(slots_left)} slots of {kind.name} {writer} -> {reader} are left")


def _run_rank(
    rank: int,
    calls: Sequence[Call],
    fifos: dict[tuple[ConnectionKind, int, int], deque[Array]],
    slots: int,
    lend: bool,
) -> Iterator[bool]:
    """Yields True after a step that acted, False where one has to wait."""
    for call in calls:
        rank_call = _RankCall(call, rank, fifos, slots)
        if lend:
            rank_call.lend_from = Lend.always if rank_call.in_place() else Lend.apart
        for turn in range(rank_call.turns()):
            for step in call.programs[rank].steps:
                loop = turn - step.lag
                if not 0 <= loop < rank_call.loops(step.chunk):
                    continue
                while not rank_call.ready(step):
                    yield False
                rank_call.act(step, loop)
                yield True


class _RankCall:
    """One rank in one call: its memory, and the ends of FIFOs its program names."""

    def __init__(
        self, call: Call, rank: int, fifos: dict[tuple[ConnectionKind, int, int], deque[Array]], slots: int
    ) -> None:
        self.call, self.rank, self.fifos, self.slots = call, rank, fifos, slots
        self.program = call.programs[rank]
        self.ins, self.outs = call.ins[rank], call.outs[rank]
        self.lend_from: Lend | None = None
        """Steps whose `lend` is at least this lend their memory; None: all copy."""

    def in_place(self) -> bool:
        return any(np.may_share_memory(i, o) for i in self.ins for o in self.outs)

    def loops(self, chunk: Ref) -> int:
        return ceil(len(self.memory(chunk)) / self.call.piece)

    def turns(self) -> int:
        loops = max((self.loops(step.chunk) for step in self.program.steps), default=0)
        return loops + self.program.max_lag if loops else 0

    def memory(self, ref: Ref) -> Array:
        return self.ins[ref.index] if ref.kind == RefKind.IN else self.outs[ref.index]

    def ready(self, step: Step) -> bool:
        """Every receiver it names holds a slot and every sender it names has room with its slowest reader."""
        held = all(self._incoming(ref) for ref in step.sources if ref.kind == RefKind.RECEIVER)
        room = all(len(queue) < self.slots for ref in step.senders for queue in self._outgoing(ref))
        return held and room

    def act(self, step: Step, loop: int) -> None:
        part = slice(loop * self.call.piece, (loop + 1) * self.call.piece)
        size = len(self.memory(step.chunk)[part])
        sources = []
        for ref in step.sources:
            data = self._incoming(ref).popleft() if ref.kind == RefKind.RECEIVER else self.memory(ref)[part]
            if len(data) != size:
                raise ScheduleError(
                    f"rank {self.rank} ({step}), loop {loop}: {ref} has {len(data)} elements, not {size}"
                )
            sources.append(data)
        if step.opcode == Opcode.skip:
            return
        result = sources[0]
        if step.opcode in (Opcode.reduce, Opcode.reduce_send):
            result = combine(sources, self.call.op, self.program.ranks if step.finish else None)
        result = result.copy()  # a slot holds its own bytes, and dst may be the memory of a source
        if step.dst is not None:
            self.memory(step.dst)[part] = result
        if self.lend_from is not None and step.lend >= self.lend_from:
            assert step.lent is not None  # check.py
            result = self.memory(step.lent)[part]
        for ref in step.senders:
            for queue in self._outgoing(ref):
                queue.append(result)

    def _incoming(self, ref: Ref) -> deque[Array]:
        connection = self.program.receivers[ref.index]
        return self.fifos.setdefault((connection.kind, connection.peer, self.rank), deque())

    def _outgoing(self, ref: Ref) -> list[deque[Array]]:
        """One queue per reader: a fan-out's slot is free when the slowest reader took it, so each queue is bounded."""
        connection = self.program.senders[ref.index]
        readers = [connection.peer]
        if connection.kind == ConnectionKind.fan_out:
            readers = [reader for reader in range(self.program.ranks) if reader != self.rank]
        return [self.fifos.setdefault((connection.kind, self.rank, reader), deque()) for reader in readers]


def combine(sources: Sequence[Array], op: str, finish_ranks: int | None) -> Array:
    """All sources by the tree of `_tree`; finish_ranks: the number of ranks where the step finishes, else None.

    float16 is widened to float32 and rounded once at the end. Integer sums wrap. avg divides at the finish: floats
    before the rounding, integers toward zero.
    """
    dtype = sources[0].dtype
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    with np.errstate(over="ignore", invalid="ignore"):
        result = _tree([source.astype(wide) for source in sources], op)
        if op == "avg" and finish_ranks is not None:
            result = _divide(result, finish_ranks)
        return result.astype(dtype)


def _tree(sources: Sequence[Array], op: str) -> Array:
    """One binary tree in the sources' order, split at the largest power of two below their number."""
    if len(sources) == 1:
        return sources[0]
    left = 1
    while 2 * left < len(sources):
        left *= 2
    combined: Array = OPS[op](_tree(sources[:left], op), _tree(sources[left:], op))
    return combined


def _divide(values: Array, ranks: int) -> Array:
    if values.dtype.kind == "f":
        return values / values.dtype.type(ranks)
    floor = values // ranks
    return (floor + ((values < 0) & (values % ranks != 0))).astype(values.dtype)  # type: ignore[no-any-return, operator]
