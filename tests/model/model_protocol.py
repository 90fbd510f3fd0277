"""FIFO, doorbell, lane and driver of the engine, action by action (docs/threads.md has the rules in words).

Every `yield` is one atomic action of the C++ code. `Bug` holds the ways of getting it wrong that the tests plant.
Locals that stay alive longer than needed split states for nothing, so small helpers are used where a value dies early.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from model_explorer import (
    ALL,
    CONTENDED,
    HELD,
    ONE,
    Body,
    add,
    bump_and_wake,
    error,
    exchange,
    futex_wait,
    load,
    read,
    snap,
    store,
    take,
    write,
)


class Bug(Enum):
    ring_before_publish = "the peer is rung before the slot is published"
    flag_read_before_publish = "the sleeping flag is read before the slot is published"
    no_look_after_flag = "the flag goes up and the thread sleeps without looking again"
    snap_after_look = "the futex word is read after the look, so a bump between them is not seen"
    flag_not_raised_again = "a woken sleeper looks and sleeps again without raising the flag"
    wake_one = "who clears the flag wakes one sleeper, not all"
    tails_kept_when_blocked = "a blocked thread keeps tails it has not published"
    one_slot_too_many = "the cached tail allows one slot more than the FIFO has"
    first_tail_only = "the writer of a fan-out looks at the first reader's tail only"
    relaxed_publish = "the slot is published with a relaxed store"
    release_publish = "the slot is published with a release store"
    release_tail = "the tail is published with a release store"
    relaxed_flag = "the flag is raised with a relaxed store"
    no_ring_for_others = "completing another thread's request rings nobody"
    contention_ignored_by_leaver = "who leaves does not ring although somebody failed to get the lane meanwhile"
    contention_ignored_by_driver = "the driver goes off duty without that ring"
    contention_ignored_by_sleeper = "who goes to sleep does not look again although somebody failed to get the lane"
    driver_not_woken_by_leaver = "the last caller leaves requests behind and does not wake the driver"
    driver_not_woken_by_issuer = "a request is issued and the parked driver is not woken"
    park_without_check = "the driver parks without looking at its duty again"
    fail_reads_flag_first = "fail() reads the flag before it stores failed, and rings only if it was up"
    fail_rings_if_flag = "fail() rings like a publisher, through the flag"
    pending_ring = "no contended mark; who leaves with requests pending rings (the first draft of the protocol)"


class Variant(Enum):
    """Freedoms of an implementation; the protocol has to be right with and without."""

    queued_after_counted = "a request is counted as pending a moment before it is in the queue"
    look_before_flag = "a caller looks once without the flag before it goes to sleep (it spins)"
    ring_before_unlock = "completing another thread's request rings before the lane is unlocked"


Bugs = frozenset[Bug | Variant]


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
    """`send` or `receive` of message `position` on `fifo`; `end` is its place in the lane state, `reader` which tail."""

    kind: str
    fifo: Fifo
    end: int
    position: int
    request: int
    first: bool
    last: bool
    reader: int = 0


class State(NamedTuple):
    """What only the holder of a lane touches: the next step; per sender the cached tail, per receiver the published one."""

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
    return state._replace(ends=state.ends[:end] + (value,) + state.ends[end + 1 :])


def _last_receive(lane: Lane, pc: int, end: int) -> Step | None:
    return next((s for s in reversed(lane.steps[:pc]) if s.kind == "receive" and s.end == end), None)


def _publish_order(bugs: Bugs) -> str:
    return "relaxed" if Bug.relaxed_publish in bugs else "release" if Bug.release_publish in bugs else "seq_cst"


# ---- lane: what the holder of the lock does


def advance(lane: Lane, state: State, own: int, bugs: Bugs) -> Body:
    """Steps until something is missing or nothing is queued. Gives (state, whether another thread's request ended)."""
    others = False
    failed = yield from _is_failed(lane)
    if failed:
        failed = None
        state, others = yield from _fail_all(lane, state, own)
        return state, others
    while state.pc < len(lane.steps):
        step = lane.steps[state.pc]
        if step.first:
            known = yield from _is_queued(lane, step.request)
            if not known:
                break
            known = None
        moved, state = yield from (send if step.kind == "send" else receive)(step, state, bugs)
        if not moved:
            if Bug.tails_kept_when_blocked not in bugs:
                state = yield from publish_tails(lane, state, bugs)
            break
        moved = None
        if step.last:
            state = yield from publish_tails(lane, state, bugs)
            yield from _complete(lane, step.request, 1)
            others = others or step.request != own
    return state, others


def _is_failed(lane: Lane) -> Body:
    if lane.failed is None:
        return False
    failed = yield load(lane.failed)
    return bool(failed)


def _is_queued(lane: Lane, request: int) -> Body:
    if lane.queue is None:
        return True
    queue = yield load(lane.queue)
    return request < queue // 100


def _complete(lane: Lane, request: int, outcome: int) -> Body:
    if lane.queue is not None:
        yield add(lane.queue, -1)
    if lane.done:
        yield store(lane.done[request], outcome)


def _fail_all(lane: Lane, state: State, own: int) -> Body:
    """After a failure the holder ends every queued request as failed (2). Gives (state, others) like advance."""
    others = False
    while state.pc < len(lane.steps):
        request = lane.steps[state.pc].request
        known = yield from _is_queued(lane, request)
        if not known:
            break
        known = None
        yield from _complete(lane, request, 2)
        others = others or request != own
        state = state._replace(pc=sum(s.request <= request for s in lane.steps))
    return state, others


def look(lane: Lane, own: int, bugs: Bugs) -> Body:
    """Advance if the lane is free. Gives whether somebody failed to get the lane while this thread had it: that thread
    has taken its failure for a look and may be asleep, so this one must look again, or ring when it leaves."""
    state = yield take(lane.lock)  # type: ignore[arg-type]
    if state is HELD or state is CONTENDED:
        if Bug.pending_ring in bugs:
            return False
        state = yield exchange(lane.lock, CONTENDED)  # type: ignore[arg-type]
        if state is HELD or state is CONTENDED:
            return False
    state, others = yield from advance(lane, state, own, bugs)
    rings = others and Bug.no_ring_for_others not in bugs
    if rings and Variant.ring_before_unlock in bugs:
        rings = False
        yield from ring(lane.door, bugs)
    contended = yield from _unlock(lane, state, bugs)
    state = None
    if rings:
        yield from ring(lane.door, bugs)
    return contended


def _unlock(lane: Lane, state: State, bugs: Bugs) -> Body:
    if Bug.pending_ring in bugs:
        yield store(lane.lock, state)  # type: ignore[arg-type]
        return False
    before = yield exchange(lane.lock, state)  # type: ignore[arg-type]
    return before is CONTENDED


# ---- the threads


def alone(lane: Lane, bugs: Bugs) -> Body:
    """The only thread of its process: no lock, no queue; it ends when its steps are done or the group has failed."""
    state, _ = yield from advance(lane, lane.start, 0, bugs)
    raised = False
    while state.pc < len(lane.steps):
        if Bug.snap_after_look not in bugs:
            yield snap(lane.door.word)
        if not (raised and Bug.flag_not_raised_again in bugs):
            yield from raise_flag(lane.door, bugs)
        raised = Bug.flag_not_raised_again in bugs
        if Bug.no_look_after_flag not in bugs:
            state, _ = yield from advance(lane, state, 0, bugs)
        if state.pc < len(lane.steps):
            if Bug.snap_after_look in bugs:
                yield snap(lane.door.word)
            yield futex_wait(lane.door.word)
            if Bug.no_look_after_flag in bugs:
                state, _ = yield from advance(lane, state, 0, bugs)


def call(lane: Lane, bugs: Bugs) -> Body:
    """A blocking request: queued, then driven by the caller itself. Gives its number."""
    own = yield from _enqueue(lane, bugs)
    yield from wait(lane, own, bugs)
    return own


def wait(lane: Lane, own: int, bugs: Bugs) -> Body:
    """A caller inside wait(): sleeps until its request is over, then hands over."""
    yield add(lane.waiters, 1)  # type: ignore[arg-type]
    asleep_next = Variant.look_before_flag not in bugs
    while True:
        if asleep_next:
            yield snap(lane.door.word)
            yield from raise_flag(lane.door, bugs)
        contended = yield from look(lane, own, bugs)
        over = yield from _is_over(lane, own)
        if over:
            break
        if asleep_next and (not contended or Bug.contention_ignored_by_sleeper in bugs):
            contended = None
            yield futex_wait(lane.door.word)
        asleep_next = True
    left = yield add(lane.waiters, -1)  # type: ignore[arg-type]
    yield from _hand_over(lane, contended, left - 1, bugs)


def _is_over(lane: Lane, own: int) -> Body:
    done = yield load(lane.done[own])
    if done:
        return True
    done = None
    failed = yield from _is_failed(lane)
    return failed


def _enqueue(lane: Lane, bugs: Bugs) -> Body:
    """Gives the request's number. Queue and count change together (under the queue's lock), or the count first."""
    if Variant.queued_after_counted in bugs:
        yield add(lane.queue, 1)  # type: ignore[arg-type]
        queue = yield add(lane.queue, 100)  # type: ignore[arg-type]
    else:
        queue = yield add(lane.queue, 101)  # type: ignore[arg-type]
    return queue // 100


def issue(lane: Lane, bugs: Bugs) -> Body:
    """An async request: queued, tried once by the issuing thread, then left to the driver or to waiting callers."""
    own = yield from _enqueue(lane, bugs)
    contended = yield from look(lane, own, bugs)
    waiting = yield load(lane.waiters)  # type: ignore[arg-type]
    if Bug.driver_not_woken_by_issuer in bugs:
        waiting = 1
    yield from _hand_over(lane, contended, waiting, bugs, may_ring=False)
    return own


def _pending(lane: Lane) -> Body:
    queue = yield load(lane.queue)  # type: ignore[arg-type]
    return queue % 100 > 0


def _hand_over(lane: Lane, contended: bool, waiting: int, bugs: Bugs, may_ring: bool = True) -> Body:
    """What a thread does that will not look at this lane again."""
    if contended and Bug.contention_ignored_by_leaver not in bugs:
        contended = False
        yield from ring(lane.door, bugs)
    pending = yield from _pending(lane)
    if pending and Bug.pending_ring in bugs and may_ring:
        yield from ring(lane.door, bugs)
    if pending and waiting == 0 and lane.parked is not None and Bug.driver_not_woken_by_leaver not in bugs:
        parked = yield exchange(lane.parked, 0)
        if parked:
            yield bump_and_wake(lane.driver_word)  # type: ignore[arg-type]


def drive(lane: Lane, bugs: Bugs) -> Body:
    """The driver thread: on duty it sleeps at the doorbell like a caller, off duty it parks on a word of its own."""
    while True:
        yield from _park_until_duty(lane, bugs)
        contended = yield from _drive_on_duty(lane, bugs)
        if contended and Bug.contention_ignored_by_driver not in bugs:
            contended = False
            yield from ring(lane.door, bugs)
        contended = False


def _park_until_duty(lane: Lane, bugs: Bugs) -> Body:
    duty = False
    if Bug.park_without_check in bugs:
        duty = yield from _on_duty(lane)
    while not duty:
        yield snap(lane.driver_word, forget=lane.door.word)  # type: ignore[arg-type]
        yield store(lane.parked, 1)  # type: ignore[arg-type]
        if Bug.park_without_check not in bugs:
            duty = yield from _on_duty(lane)
        if not duty:
            yield futex_wait(lane.driver_word)  # type: ignore[arg-type]
            duty = yield from _on_duty(lane)


def _drive_on_duty(lane: Lane, bugs: Bugs) -> Body:
    """Gives whether the last look of this term was contended: then the driver owes a ring."""
    while True:
        yield snap(lane.door.word, forget=lane.driver_word)
        yield from raise_flag(lane.door, bugs)
        contended = yield from look(lane, -1, bugs)
        duty = yield from _on_duty(lane)
        if duty and (not contended or Bug.contention_ignored_by_sleeper in bugs):
            contended = False
            yield futex_wait(lane.door.word)
            duty = yield from _on_duty(lane)
        if not duty:
            return contended


def _on_duty(lane: Lane) -> Body:
    pending = yield from _pending(lane)
    if not pending:
        return False
    waiting = yield load(lane.waiters)  # type: ignore[arg-type]
    return waiting == 0


def fail(failed: int, doors: tuple[Door, ...], bugs: Bugs) -> Body:
    """The group fails: everybody is rung, whatever the flags say."""
    up: Any = 1
    if Bug.fail_reads_flag_first in bugs:
        up = yield load(doors[0].sleeping)
    yield store(failed, 1)
    i = 0
    while i < len(doors) and up:
        if Bug.fail_rings_if_flag in bugs:
            yield from ring(doors[i], bugs)
        else:
            yield bump_and_wake(doors[i].word)
        i += 1
