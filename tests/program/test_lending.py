"""What a program lends is not written before its readers have read it: the verifier proves it or says where not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from calls import check_values, lengths, make_call
from plans import Plan, by_builder, change_step, good
from ringcomm.program.build import Builder
from ringcomm.program.lending import refuse_unsafe_lending
from ringcomm.program.ops import Lend, Program, ScheduleError
from ringcomm.program.plan import Plan as Planned
from ringcomm.program.reference import execute
from ringcomm.program.verify import verify
from ringcomm.schedules import BUILT_IN, build_all, roots


def lend_everything(plan: Plan, lend: Lend = Lend.always) -> Plan:
    """Every step that has memory to lend says that it may."""
    return [
        replace(p, steps=tuple(replace(s, lend=lend) if s.senders and s.lent is not None else s for s in p.steps))
        for p in plan
    ]


def goes_wrong(plan: list[Program], in_place: bool, seeds: int = 60) -> bool:
    """Whether some random order of the ranks gives wrong values when what the plan says is lent."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        call, inputs = make_call(plan, lengths(plan, rng, [7, 33]), 16, "int32", seed, in_place=in_place)
        execute([call], rng=rng)
        try:
            check_values(call, inputs)
        except AssertionError:
            return True
    return False


def test_one_shot_in_place_is_a_race_and_refused() -> None:
    plan = change_step(good("one_shot", 3), 1, 0, lend=Lend.always)
    with pytest.raises(
        ScheduleError, match=r"rank 1, step 1 .* writes OUT 0 although step 0 .* lent IN 0, the same memory"
    ):
        verify(plan)
    assert goes_wrong(plan, in_place=True)
    assert not goes_wrong(plan, in_place=False)
    verify(change_step(plan, 1, 0, lend=Lend.apart))


def _reuses_out(b: Builder, rank: int) -> None:
    """What stands in OUT is lent, and the result overwrites it."""
    peer = 1 - rank
    b.copy(b.input(), b.output())
    b.send(b.output(), b.pair_to(peer), lend=Lend.apart)
    b.reduce([b.output(), b.pair_from(peer)] if rank == 0 else [b.pair_from(peer), b.output()], b.output(), finish=True)


def test_memory_of_the_output_that_is_written_again_is_refused_out_of_place_too() -> None:
    plan = by_builder(2, _reuses_out)
    with pytest.raises(
        ScheduleError, match=r"step 2 .* writes OUT 0 although step 1 .* lent OUT 0 to rank [01] .* never, not"
    ):
        verify(plan)
    assert goes_wrong(plan, in_place=False)


def _two_readers(b: Builder, rank: int) -> None:
    """Rank 0 lends IN to 1 and 2; the result it takes shows that 1 has read it, and by way of 1 that 2 has."""
    if rank == 0:
        b.send(b.input(), b.pair_to(1), b.pair_to(2), lend=Lend.always)
        b.receive(b.pair_from(1), b.output())
    elif rank == 1:
        b.reduce_send(
            [b.pair_from(0), b.input(), b.pair_from(2)], b.pair_to(0), b.pair_to(2), dst=b.output(), finish=True
        )
    else:
        b.skip(b.pair_from(0), b.input())
        b.send(b.input(), b.pair_to(1))
        b.receive(b.pair_from(1), b.output())


def test_knowledge_travels_by_way_of_others_and_only_in_order() -> None:
    plan = by_builder(3, _two_readers)
    verify(plan)
    steps = plan[2].steps
    plan[2] = replace(plan[2], steps=(steps[1], steps[0], steps[2]))  # rank 2 gives its own before it reads
    with pytest.raises(ScheduleError, match=r"rank 0, step 1 .* lent IN 0.* to rank 2 "):
        verify(plan)


def test_what_another_chunk_would_tell_does_not_count() -> None:
    """Chunk 1 comes back, but it may be empty: it cannot vouch for chunk 0."""

    def write(b: Builder, rank: int) -> None:
        peer = 1 - rank
        order = (
            (lambda own: [b.input(own), b.pair_from(peer)])
            if rank == 0
            else lambda own: [b.pair_from(peer), b.input(own)]
        )
        b.send(b.input(0), b.pair_to(peer), lend=Lend.always)
        b.send(b.input(1), b.pair_to(peer))
        b.reduce(order(0), b.output(0), finish=True)
        b.reduce(order(1), b.output(1), finish=True)

    with pytest.raises(ScheduleError, match=r"step 2 .* writes OUT 0 although step 0"):
        verify(by_builder(2, write, cut=2))


@pytest.mark.parametrize("schedule", ["ring", "two_shot", "tree"])
def test_all_that_all_reduce_sends_from_memory_is_lent_in_place(schedule: str) -> None:
    for ranks in (2, 3, 4, 7):
        for program in build_all("all_reduce", schedule, ranks):
            for step in program.steps:
                has_memory = step.senders and step.lent is not None
                assert step.lend == (Lend.always if has_memory else Lend.never), f"{schedule}, {ranks} ranks: {step}"


def test_a_step_without_memory_cannot_lend() -> None:
    plan = good("ring", 3)
    middle = next(i for i, s in enumerate(plan[0].steps) if s.senders and s.lent is None)
    with pytest.raises(ScheduleError, match="lend is always: it has no memory"):
        verify(change_step(plan, 0, middle, lend=Lend.always))
    with pytest.raises(ScheduleError, match="lend is apart: it has no memory"):
        verify(change_step(good("ring", 3), 0, len(plan[0].steps) - 1, lend=Lend.apart))


def _moved(plan: Plan, rng: random.Random) -> Plan:
    """Steps of one rank in another order or with other lags: what is known when changes with them."""
    rank = rng.randrange(len(plan))
    steps = list(plan[rank].steps)
    rng.shuffle(steps)
    steps = [replace(s, lag=rng.choice([s.lag, 0, 1, 2])) for s in steps]
    return [*plan[:rank], replace(plan[rank], steps=tuple(steps)), *plan[rank + 1 :]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: good("one_shot", 2),
        lambda: good("one_shot", 3, "reduce_scatter"),
        lambda: good("one_shot", 3, "all_gather"),
        lambda: good("two_shot", 3),
        lambda: good("ring", 3),
        lambda: good("tree", 3),
    ],
    ids=["one_shot", "reduce_scatter", "all_gather", "two_shot", "ring", "tree"],
)
def test_what_the_verifier_lets_pass_is_harmless(make: Callable[[], Plan]) -> None:
    plan = lend_everything(make())
    for seed in range(40):
        moved = _moved(plan, random.Random(seed)) if seed else plan
        try:
            verify(moved)
        except ScheduleError:
            continue
        assert not goes_wrong(moved, in_place=False, seeds=6), f"seed {seed}"
        assert not goes_wrong(moved, in_place=True, seeds=6), f"seed {seed}"


@pytest.mark.parametrize("schedule", sorted(BUILT_IN))
def test_built_in_schedules_at_sizes_up_to_33_ranks(schedule: str) -> None:
    for collective in BUILT_IN[schedule].collectives:
        for ranks in (2, 5, 8, 13, 33):
            for root in roots(collective, ranks)[:2]:
                refuse_unsafe_lending(Planned(build_all(collective, schedule, ranks, root)))


@pytest.mark.parametrize(
    ("collective", "schedule"),
    [("broadcast", "one_shot"), ("broadcast", "tree"), ("broadcast", "chain"), ("scatter", "one_shot")],
)
def test_only_the_roots_of_broadcast_and_scatter_wait_for_their_readers(collective: str, schedule: str) -> None:
    for root in (0, 2):
        assert [p.drain for p in build_all(collective, schedule, 4, root)] == [rank == root for rank in range(4)]
    assert not any(p.drain for p in build_all("all_reduce", "two_shot", 4))
