"""Small async work and the poller's timer, action by action (docs/threads_model.md has the rules in words).

The timer fires at once here, which is no different from later: the poller may be late by any time. It is a futex word:
firing is a bump, the poller's read of the descriptor takes the snapshot, epoll_wait is the sleep. Whether work is young
is told by two counts: of requests left to the poller, and of how many of those have grown old.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_bugs import Bug, Bugs
from model_fifo import Lane, ring
from model_operations import Body, add, bump_and_wake, exchange, futex_wait, load, snap, store
from model_protocol import enqueue, has_pending, look, on_duty, wake_driver


@dataclass(frozen=True)
class Timer:
    """One per process. Without `left` and `now` nothing is young."""

    claimed: int  # somebody has set the timer, or is about to
    word: int
    left: int | None = None  # requests left to the poller: the time stamp of the youngest
    now: int | None = None  # how many of them are old


def issue_small(lane: Lane, timer: Timer, bugs: Bugs) -> Body:
    """An async request: queued, tried once, then left to waiting callers or to the poller's look. Gives its number."""
    if Bug.claimed_before_queued in bugs:
        yield from _drive_soon(timer)
    own = yield from enqueue(lane, bugs)
    yield from look(lane, own, bugs, Bug.want_ignored_by_issuer)
    pending = yield from has_pending(lane)
    if pending:
        pending = False
        yield from _leave_to_others(lane, timer, own, bugs)
    return own


def _leave_to_others(lane: Lane, timer: Timer, own: int, bugs: Bugs) -> Body:
    if timer.left is not None:
        yield store(timer.left, own + 1, "relaxed")
    waiting = yield load(lane.waiters)  # type: ignore[arg-type]
    if waiting:
        waiting = 0
        yield from ring(lane.door, bugs)
    elif Bug.claimed_before_queued not in bugs:
        yield from _drive_soon(timer)


def _drive_soon(timer: Timer) -> Body:
    claimed = yield exchange(timer.claimed, 1)
    if not claimed:
        yield bump_and_wake(timer.word)


def time_passes(timer: Timer, requests: int) -> Body:
    while requests:
        yield add(timer.now, 1)  # type: ignore[arg-type]
        requests -= 1


def poll(lane: Lane, timer: Timer, bugs: Bugs) -> Body:
    """The poller thread: whenever the timer has fired it looks after the lane."""
    while True:
        yield futex_wait(timer.word)
        yield snap(timer.word)
        yield from _look_after(lane, timer, bugs)


def _look_after(lane: Lane, timer: Timer, bugs: Bugs) -> Body:
    """The claim is given back before the look: so work that this look does not see sets the timer again."""
    late = Bug.claim_given_back_after_look in bugs
    if not late:
        yield store(timer.claimed, 0, "relaxed" if Bug.claim_given_back_relaxed in bugs else "seq_cst")
    duty = yield from on_duty(lane)
    young = yield from _is_young(timer)
    if duty and not young:
        duty = yield from _look_once(lane, bugs)
        if duty and Bug.poller_wakes_nobody not in bugs:
            duty = False
            yield from wake_driver(lane)
    if late:
        yield store(timer.claimed, 0)
    if duty and young and Bug.young_work_forgotten not in bugs:
        yield from _drive_soon(timer)


def _look_once(lane: Lane, bugs: Bugs) -> Body:
    """Gives whether something is left that no caller drives."""
    yield from look(lane, -1, bugs, Bug.want_ignored_by_poller)
    left = yield from on_duty(lane)
    return left


def _is_young(timer: Timer) -> Body:
    if timer.left is None or timer.now is None:
        return False
    left = yield load(timer.left)
    now = yield load(timer.now)
    return left > now
