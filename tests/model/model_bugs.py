"""What the tests do to the protocol: planted bugs, and variants that must be right."""

from __future__ import annotations

from enum import Enum


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
    want_ignored_by_caller = "a caller that unlocks a lane another thread wanted does not look again"
    want_ignored_by_issuer = "the same for the issuer of an async request"
    want_ignored_by_driver = "the same for the driver"
    driver_not_woken_by_leaver = "the last caller leaves requests behind and does not wake the driver"
    driver_not_woken_by_issuer = "a request is issued and the parked driver is not woken"
    issue_without_look_or_ring = "who issues an async request neither tries it nor rings, since a caller is waiting"
    park_without_check = "the driver parks without looking at its duty again"
    fail_reads_flag_first = "fail() reads the flag before it stores failed, and rings only if it was up"
    fail_rings_if_flag = "fail() rings like a publisher, through the flag"
    claim_given_back_after_look = (
        "the poller gives the timer back only after its look, so work that came meanwhile set none"
    )
    claim_given_back_relaxed = "the poller gives the timer back with a relaxed store"
    claimed_before_queued = "the timer is set before the work is in the queue, so its look may come too early"
    young_work_forgotten = "the poller leaves young work alone and does not set the timer again"
    poller_wakes_nobody = "the poller looks, something is left, and it does not wake the driver"
    want_ignored_by_poller = "a poller that unlocks a lane another thread wanted does not look again"
    no_mark = "the lane lock has no mark; a caller that leaves with requests pending rings (the first draft)"


class Variant(Enum):
    """Freedoms of an implementation; the protocol has to be right with and without."""

    queued_after_counted = "a request is counted as pending a moment before it is in the queue"
    look_before_flag = "a caller looks once without the flag before it goes to sleep (it spins)"
    leaver_rings = "who leaves rings its own process"
    issue_without_look = "who issues an async request does not try it at once, and rings instead"
    driver_sleeps_unchecked = "the driver on duty does not look at its duty again between its look and its sleep"


Bugs = frozenset[Bug | Variant]
