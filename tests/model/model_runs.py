"""Which worlds are explored, and which planted bug must be found where.

python tests/model/model_runs.py           every right protocol of the quick tier: states, seconds
python tests/model/model_runs.py full      the long tier too
python tests/model/model_runs.py BUG       the shortest way into one planted bug (a name of Bug in model_bugs.py)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import model_scenarios as worlds
from model_bugs import Bug, Bugs, Variant
from model_explorer import Explorer, Result
from model_operations import Model


class Run(NamedTuple):
    world: Callable[..., Model]
    options: dict[str, Any]
    changes: Bugs = frozenset()

    def explore(self) -> Result:
        return Explorer(self.world(self.changes, **self.options)).run()

    def __str__(self) -> str:
        parts = [f"{k}={v}" for k, v in self.options.items()] + sorted(c.name for c in self.changes)
        return "-".join([self.world.__name__, *parts])


def right(world: Callable[..., Model], *variants: Variant, **options: Any) -> Run:
    return Run(world, options, frozenset(variants))


def wrong(bug: Bug, world: Callable[..., Model], *variants: Variant, **options: Any) -> Run:
    return Run(world, options, frozenset((bug, *variants)))


RINGING = (Variant.leaver_rings, Variant.driver_sleeps_unchecked)

QUICK = [
    right(worlds.duplex, slots=1, messages=3),
    right(worlds.duplex, slots=2, messages=3),
    right(worlds.duplex, slots=1, messages=3, weak=True),
    right(worlds.fan_out, slots=1, messages=2),
    right(worlds.fan_out, slots=2, messages=3),
    right(worlds.fan_out, slots=1, messages=2, weak=True),
    right(worlds.two_callers, kinds="sr"),
    right(worlds.two_callers, kinds="rr", slots=2),
    right(worlds.two_groups, *Variant),
    right(worlds.two_groups, weak=True),
    right(worlds.answer_needed),
    right(worlds.driver_only, kinds="rr"),
    right(worlds.driver_only, kinds="x", weak=True),
    right(worlds.driver_only, Variant.queued_after_counted, kinds="x"),
    right(worlds.issue_then_wait, kinds="rr", slots=2),
    right(worlds.issue_then_call, kinds="rr", slots=2),
    right(worlds.caller_and_issuer, *Variant, driver=False),
    right(worlds.caller_and_issuer, driver=False, weak=True),
    right(worlds.driver_only, Variant.issue_without_look, kinds="rr"),
    right(worlds.driver_only, *RINGING, kinds="x"),
    right(worlds.small_async),
    right(worlds.small_async, ages=False, weak=True),
    right(worlds.failure_alone),
    right(worlds.failure_after_kill),
    right(worlds.failure_with_driver),
]

LONG = [
    *(right(worlds.issue_then_wait, kinds=k) for k in ("rr", "rs", "sr", "xx")),
    *(right(worlds.issue_then_call, kinds=k) for k in ("rr", "rs", "sr", "xx")),
    *(right(worlds.driver_only, kinds=k) for k in ("rs", "sr", "ss", "xx")),
    *(right(worlds.issue_then_wait, v, kinds="rr", slots=2) for v in Variant),
    *(right(worlds.issue_then_call, v, kinds="rr", slots=2) for v in Variant),
    right(worlds.small_async, weak=True),
    right(worlds.small_async, Variant.queued_after_counted, *RINGING, ages=False),
    *(right(worlds.small_async, kinds=k, ages=False) for k in ("x", "rr")),
    right(worlds.small_async_then_wait, ages=False),
    right(worlds.failure_with_driver, *RINGING),
    right(worlds.two_callers, Variant.look_before_flag, kinds="rr"),
    right(worlds.two_callers, kinds="xx"),
    right(worlds.caller_and_issuer),
]

PLANTED = [
    (wrong(Bug.ring_before_publish, worlds.duplex), "sleeps for ever"),
    (wrong(Bug.flag_read_before_publish, worlds.duplex), "sleeps for ever"),
    (wrong(Bug.no_look_after_flag, worlds.duplex), "sleeps for ever"),
    (wrong(Bug.snap_after_look, worlds.duplex), "sleeps for ever"),
    (wrong(Bug.flag_not_raised_again, worlds.duplex), "sleeps for ever"),
    (wrong(Bug.wake_one, worlds.two_groups), "sleeps for ever"),
    (wrong(Bug.wake_one, worlds.two_callers), "sleeps for ever"),
    (wrong(Bug.tails_kept_when_blocked, worlds.duplex), "sleeps for ever"),
    (wrong(Bug.one_slot_too_many, worlds.duplex), "data race on AB.payload0"),
    (wrong(Bug.first_tail_only, worlds.fan_out), "data race on W.payload0"),
    (wrong(Bug.relaxed_publish, worlds.duplex, weak=True), "message 0 where 1 is due"),
    (wrong(Bug.release_publish, worlds.duplex, weak=True), "sleeps for ever"),
    (wrong(Bug.release_tail, worlds.duplex, weak=True), "sleeps for ever"),
    (wrong(Bug.relaxed_flag, worlds.duplex, weak=True), "sleeps for ever"),
    (wrong(Bug.no_ring_for_others, worlds.answer_needed), "sleeps for ever"),
    (wrong(Bug.want_ignored_by_caller, worlds.two_callers), "sleeps for ever"),
    (wrong(Bug.want_ignored_by_issuer, worlds.caller_and_issuer, driver=False), "sleeps for ever"),
    (wrong(Bug.want_ignored_by_driver, worlds.issue_then_wait), "sleeps for ever"),
    (wrong(Bug.want_ignored_by_driver, worlds.issue_then_call, *RINGING, slots=2), "sleeps for ever"),
    (wrong(Bug.issue_without_look_or_ring, worlds.caller_and_issuer), "all is quiet, but request 1"),
    (wrong(Bug.driver_not_woken_by_leaver, worlds.issue_then_wait), "all is quiet, but request 1"),
    (wrong(Bug.driver_not_woken_by_issuer, worlds.driver_only, kinds="r"), "all is quiet, but request 0"),
    (wrong(Bug.park_without_check, worlds.driver_only, kinds="r"), "all is quiet, but request 0"),
    (wrong(Bug.claim_given_back_after_look, worlds.small_async, ages=False), "all is quiet, but request 0"),
    (wrong(Bug.claim_given_back_relaxed, worlds.small_async, ages=False, weak=True), "all is quiet, but request 0"),
    (wrong(Bug.claimed_before_queued, worlds.small_async, ages=False), "all is quiet, but request 0"),
    (wrong(Bug.young_work_forgotten, worlds.small_async), "all is quiet, but request 0"),
    (wrong(Bug.poller_wakes_nobody, worlds.small_async, ages=False), "all is quiet, but request 0"),
    (wrong(Bug.want_ignored_by_poller, worlds.small_async, ages=False), "all is quiet, but request 0"),
    (wrong(Bug.want_ignored_by_poller, worlds.small_async_then_wait, ages=False), "sleeps for ever"),
    (wrong(Bug.fail_reads_flag_first, worlds.failure_alone), "sleeps for ever"),
    (wrong(Bug.fail_rings_if_flag, worlds.failure_after_kill), "sleeps for ever"),
    (wrong(Bug.no_mark, worlds.driver_only, kinds="x"), "all is quiet, but request 0"),
    (wrong(Bug.no_mark, worlds.caller_and_issuer, driver=False), "sleeps for ever"),
]


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in Bug.__members__:
        for run, _ in PLANTED:
            if Bug[arguments[0]] in run.changes:
                print(f"{run}: {run.explore()}")
        return 0
    if arguments not in ([], ["full"]):
        print(
            f"unknown argument {arguments[0]!r}: nothing, full, or one of {', '.join(Bug.__members__)}", file=sys.stderr
        )
        return 2
    status = 0
    for run in QUICK + (LONG if arguments else []):
        start = time.monotonic()
        result = run.explore()
        print(f"{result.states:>9} states {time.monotonic() - start:6.1f} s  {run}", flush=True)
        if result.problem is not None:
            print(result)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
