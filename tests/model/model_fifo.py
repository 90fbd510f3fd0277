"""Doorbell and FIFO, action by action (docs/threads_model.md has the rules in words).

Every `yield` is one atomic action of the C++ code. Locals that stay alive longer than needed split states for nothing,
so small helpers are used where a value dies early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model_bugs import Bug, Bugs
from model_operations import ALL, ONE, Body, bump_and_wake, error, exchange, load, read, store, write


@dataclass(frozen=True)
class Door:
    """One per process: the flag that says somebody sleeps, and the futex word."""

    sleeping: int
    word: int


@dataclass(frozen=True)
class Fifo:
    lines: tuple[int, ...]
    payloads: tuple[int, ...]
    tails: tuple[int, ...]
    writer: Door
    readers: tuple[Door, ...]


@dataclass(frozen=True)
class Step:
    """`send` or `receive` of message `position` on `fifo`; `end`: its place in the lane state; `reader`: which tail."""

    kind: str
    fifo: Fifo
    end: int
    position: int
    request: int
    first: bool
    last: bool
    reader: int = 0


class State(NamedTuple):
    """What only the holder of a lane touches: the next step; per sender its cached tail, per receiver the published."""

    pc: int
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Lane:
    """One group in one process. Cells that a scenario does not need are None, and so are the actions on them."""

    door: Door
    steps: tuple[Step, ...]
    ends: int
    done: tuple[int, ...]
    lock: int | None = None
    queue: int | None = None  # 100 x requests ever queued + requests pending
    waiters: int | None = None
    parked: int | None = None
    driver_word: int | None = None
    failed: int | None = None

    @property
    def start(self) -> State:
        return State(0, (0,) * self.ends)


# ---- doorbell


def ring(door: Door, bugs: Bugs) -> Body:
    up = yield load(door.sleeping)
    if up:
        yield from ring_up(door, bugs)


def ring_up(door: Door, bugs: Bugs) -> Body:
    up = yield exchange(door.sleeping, 0)
    if up:
        yield bump_and_wake(door.word, ONE if Bug.wake_one in bugs else ALL)


def raise_flag(door: Door, bugs: Bugs) -> Body:
    yield store(door.sleeping, 1, "relaxed" if Bug.relaxed_flag in bugs else "seq_cst")


# ---- FIFO


def publish(at: int, value: int, order: str, doors: tuple[Door, ...], bugs: Bugs) -> Body:
    """Store, then ring everybody who may wait for it."""
    if Bug.flag_read_before_publish in bugs:
        up = yield load(doors[0].sleeping)
        yield store(at, value, order)
        if up:
            yield from ring_up(doors[0], bugs)
        return
    if Bug.ring_before_publish in bugs:
        yield from ring(doors[0], bugs)
        yield store(at, value, order)
        return
    yield store(at, value, order)
    i = 0
    while i < len(doors):
        yield from ring(doors[i], bugs)
        i += 1


def smallest_tail(fifo: Fifo, bugs: Bugs) -> Body:
    lowest = yield load(fifo.tails[0])
    i = 1
    while i < len(fifo.tails) and Bug.first_tail_only not in bugs:
        tail = yield load(fifo.tails[i])
        lowest = min(lowest, tail)
        tail = None
        i += 1
    return lowest


def send(step: Step, state: State, bugs: Bugs) -> Body:
    """Gives (moved, state). The tails are read only when the cached one says the FIFO is full."""
    fifo, p = step.fifo, step.position
    room = len(fifo.lines) + (Bug.one_slot_too_many in bugs)
    if p - state.ends[step.end] >= room:
        lowest = yield from smallest_tail(fifo, bugs)
        state = _with_end(state, step.end, lowest)
        lowest = None
        if p - state.ends[step.end] >= room:
            return False, state
    slot = p % len(fifo.lines)
    yield write(fifo.payloads[slot], p + 1)
    yield from publish(fifo.lines[slot], p + 1, _publish_order(bugs), fifo.readers, bugs)
    return True, state._replace(pc=state.pc + 1)


def receive(step: Step, state: State, bugs: Bugs) -> Body:
    """Gives (moved, state). The tail is left to publish_tails."""
    fifo, q = step.fifo, step.position
    slot = q % len(fifo.lines)
    line = yield load(fifo.lines[slot])
    if line > q + 1:
        yield error(f"overrun: line {line} where message {q + 1} is due")
    if line != q + 1:
        return False, state
    got = yield read(fifo.payloads[slot])
    if got != q + 1:
        yield error(f"message {got} where {q + 1} is due")
    return True, state._replace(pc=state.pc + 1)


def publish_tails(lane: Lane, state: State, bugs: Bugs) -> Body:
    """Tells the writers how far this lane has read; gives the state. Only tails that have moved are stored."""
    i = 0
    while i < lane.ends:
        step = _last_receive(lane, state.pc, i)
        if step is not None and step.position + 1 > state.ends[i]:
            order = "release" if Bug.release_tail in bugs else "seq_cst"
            state = _with_end(state, i, step.position + 1)
            yield from publish(step.fifo.tails[step.reader], step.position + 1, order, (step.fifo.writer,), bugs)
        i += 1
    return state


def _with_end(state: State, end: int, value: int) -> State:
    return state._replace(ends=(*state.ends[:end], value, *state.ends[end + 1 :]))


def _last_receive(lane: Lane, pc: int, end: int) -> Step | None:
    return next((s for s in reversed(lane.steps[:pc]) if s.kind == "receive" and s.end == end), None)


def _publish_order(bugs: Bugs) -> str:
    return "relaxed" if Bug.relaxed_publish in bugs else "release" if Bug.release_publish in bugs else "seq_cst"
