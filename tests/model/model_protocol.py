"""Lane, callers, driver and failure of the engine, action by action (docs/threads_model.md has the rules in words)."""

from __future__ import annotations

from typing import Any

from model_bugs import Bug, Bugs, Variant
from model_fifo import Door, Lane, State, publish_tails, raise_flag, receive, ring, send
from model_operations import HELD, WANTED, Body, add, bump_and_wake, exchange, futex_wait, load, mark, snap, store, take

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


def look(lane: Lane, own: int, bugs: Bugs, deaf: Bug) -> Body:
    """Advance if the lane is free. If another thread wanted it meanwhile, that one has taken its failure for a look and
    may be asleep, so this one looks again on its behalf. `deaf`: the bug that this kind of thread does not."""
    again, others = True, False
    while again:
        again, ended = yield from _look_once(lane, own, bugs)
        others = others or ended
        again = again and deaf not in bugs
        ended = None
    if others and Bug.no_ring_for_others not in bugs:
        yield from ring(lane.door, bugs)


def _look_once(lane: Lane, own: int, bugs: Bugs) -> Body:
    """Gives (whether another thread wanted the lane, whether another thread's request ended)."""
    state = yield from _try_lock(lane, bugs)
    if state is None:
        return False, False
    state, others = yield from advance(lane, state, own, bugs)
    if Bug.no_mark in bugs:
        yield store(lane.lock, state)  # type: ignore[arg-type]
        return False, others
    before = yield exchange(lane.lock, state)  # type: ignore[arg-type]
    return before is WANTED, others


def _try_lock(lane: Lane, bugs: Bugs) -> Body:
    """Gives the lane's state, or None and has left the mark."""
    while True:
        state = yield take(lane.lock)  # type: ignore[arg-type]
        if state is not HELD and state is not WANTED:
            return state
        if state is WANTED or Bug.no_mark in bugs:
            return None
        state = yield mark(lane.lock)  # type: ignore[arg-type]
        if state is HELD or state is WANTED:
            return None


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
    own = yield from enqueue(lane, bugs)
    yield from wait(lane, own, bugs)
    return own


def wait(lane: Lane, own: int, bugs: Bugs) -> Body:
    """A caller inside wait(): sleeps until its request is over, then hands over."""
    yield add(lane.waiters, 1)  # type: ignore[arg-type]
    flag_up = Variant.look_before_flag not in bugs
    while True:
        if flag_up:
            yield snap(lane.door.word)
            yield from raise_flag(lane.door, bugs)
        yield from look(lane, own, bugs, Bug.want_ignored_by_caller)
        over = yield load(lane.done[own])
        if over:
            break
        if flag_up:
            yield futex_wait(lane.door.word)
        flag_up = True
    left = yield add(lane.waiters, -1)  # type: ignore[arg-type]
    rings = Variant.leaver_rings in bugs
    if Bug.no_mark in bugs:
        rings = yield from has_pending(lane)
    yield from _hand_over(lane, rings, left - 1, bugs)


def enqueue(lane: Lane, bugs: Bugs) -> Body:
    """Gives the request's number. Queue and count change together (under the queue's lock), or the count first."""
    if Variant.queued_after_counted in bugs:
        yield add(lane.queue, 1)  # type: ignore[arg-type]
        queue = yield add(lane.queue, 100)  # type: ignore[arg-type]
    else:
        queue = yield add(lane.queue, 101)  # type: ignore[arg-type]
    return queue // 100


def issue(lane: Lane, bugs: Bugs) -> Body:
    """An async request: queued, tried once by the issuing thread, then left to the driver or to waiting callers."""
    own = yield from enqueue(lane, bugs)
    looks = Variant.issue_without_look not in bugs and Bug.issue_without_look_or_ring not in bugs
    if looks:
        yield from look(lane, own, bugs, Bug.want_ignored_by_issuer)
    waiting = yield load(lane.waiters)  # type: ignore[arg-type]
    if Bug.driver_not_woken_by_issuer in bugs:
        waiting = 1
    rings = Variant.leaver_rings in bugs or Variant.issue_without_look in bugs
    yield from _hand_over(lane, rings, waiting, bugs)
    return own


def has_pending(lane: Lane) -> Body:
    queue = yield load(lane.queue)  # type: ignore[arg-type]
    return queue % 100 > 0


def _hand_over(lane: Lane, rings: bool, waiting: int, bugs: Bugs) -> Body:
    """What a thread does that will not look at this lane again."""
    if rings:
        rings = False
        yield from ring(lane.door, bugs)
    if waiting or lane.parked is None or Bug.driver_not_woken_by_leaver in bugs:
        return
    pending = yield from has_pending(lane)
    if pending:
        yield from wake_driver(lane)


def wake_driver(lane: Lane) -> Body:
    parked = yield exchange(lane.parked, 0)  # type: ignore[arg-type]
    if parked:
        yield bump_and_wake(lane.driver_word)  # type: ignore[arg-type]


def drive(lane: Lane, bugs: Bugs) -> Body:
    """The driver thread: on duty it sleeps at the doorbell like a caller, off duty it parks on a word of its own."""
    while True:
        yield from _park_until_duty(lane, bugs)
        yield from _drive_on_duty(lane, bugs)


def _park_until_duty(lane: Lane, bugs: Bugs) -> Body:
    duty = False
    if Bug.park_without_check in bugs:
        duty = yield from on_duty(lane)
    while not duty:
        yield snap(lane.driver_word, forget=lane.door.word)  # type: ignore[arg-type]
        yield store(lane.parked, 1)  # type: ignore[arg-type]
        if Bug.park_without_check not in bugs:
            duty = yield from on_duty(lane)
        if not duty:
            yield futex_wait(lane.driver_word)  # type: ignore[arg-type]
            duty = yield from on_duty(lane)


def _drive_on_duty(lane: Lane, bugs: Bugs) -> Body:
    duty = True
    while duty:
        yield snap(lane.door.word, forget=lane.driver_word)
        yield from raise_flag(lane.door, bugs)
        yield from look(lane, -1, bugs, Bug.want_ignored_by_driver)
        if Variant.driver_sleeps_unchecked not in bugs:
            duty = yield from on_duty(lane)
        if duty:
            yield futex_wait(lane.door.word)
            duty = yield from on_duty(lane)


def on_duty(lane: Lane) -> Body:
    pending = yield from has_pending(lane)
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
