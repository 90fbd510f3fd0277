"""The verifier refuses every broken plan and names the step; what it lets pass computes the right values."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from calls import run_and_check
from plans import BROKEN, ILLEGAL, Broken, good, late_deadlock
from ringcomm.program.ops import Program, ScheduleError, Step
from ringcomm.program.plan import Plan
from ringcomm.program.replay import Replay
from ringcomm.program.verify import verify, verify_sequence
from ringcomm.schedules import build_all


@pytest.mark.parametrize("broken", [*BROKEN, *ILLEGAL], ids=lambda broken: broken.name)
def test_broken_plan_is_refused_by_name(broken: Broken) -> None:
    with pytest.raises(ScheduleError) as caught:
        verify(broken.plan(), broken.slots)
    assert re.search(broken.says, str(caught.value)), str(caught.value)


def test_a_sequence_of_right_plans_passes_and_a_wrong_one_in_it_does_not() -> None:
    right = [good("ring", 3), good("tree", 3), good("one_shot", 3, "broadcast", 2)]
    verify_sequence(right)
    wrong = next(b for b in BROKEN if b.name == "unequal order on ranks").plan()
    with pytest.raises(ScheduleError, match="another order"):
        verify_sequence([*right, wrong])
    with pytest.raises(ScheduleError, match=r"sequence\[1\]: 4 ranks"):
        verify_sequence([good("ring", 3), good("ring", 4)])
    with pytest.raises(ScheduleError, match="empty"):
        verify_sequence([])


def test_replay_across_calls_sees_a_slot_that_wanders_into_the_next_call() -> None:
    """A slot left in one call would be taken by the next: caught although each call alone would run to its end."""
    broken = next(b for b in BROKEN if b.name == "left-over slot").plan()
    with pytest.raises(ScheduleError, match="call"):
        verify(broken)


def test_a_deadlock_of_long_messages_only_is_found() -> None:
    plan = Plan(late_deadlock())
    for loops in (1, 2, 13, 24):
        Replay([plan], [[loops]], plan.slots).run()
    with pytest.raises(ScheduleError, match=r"loops: deadlock with 4 slots; who waits for whom: rank 0 -> rank 1 -> "):
        verify(plan.programs)
    verify(plan.programs, slots=5)


def mutate(plan: list[Program], rng: random.Random) -> tuple[list[Program], str]:
    """Drops, duplicates or swaps steps of one rank, or changes a lag, the finish flag or the order of operands."""
    rank = rng.choice([r for r, p in enumerate(plan) if p.steps])
    steps = list(plan[rank].steps)
    i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
    kind = rng.choice(["drop", "duplicate", "swap", "lag", "finish", "operands"])
    if kind == "drop":
        del steps[i]
    elif kind == "duplicate":
        steps.insert(j, steps[i])
    elif kind == "swap":
        steps[i], steps[j] = steps[j], steps[i]
    elif kind == "lag":
        steps[i] = replace(steps[i], lag=max(0, steps[i].lag + rng.choice([-1, 1, 2])))
    elif kind == "finish":
        steps[i] = replace(steps[i], finish=not steps[i].finish)
    else:
        steps[i] = _shuffled(steps[i], rng)
    mutated = list(plan)
    mutated[rank] = replace(plan[rank], steps=tuple(steps))
    return mutated, f"{kind} of steps {i}, {j} on rank {rank}"


def _shuffled(step: Step, rng: random.Random) -> Step:
    sources = list(step.sources)
    rng.shuffle(sources)
    return replace(step, sources=tuple(sources))


MUTATED = [
    ("all_reduce", "ring", 2),
    ("all_reduce", "ring", 4),
    ("all_reduce", "two_shot", 3),
    ("all_reduce", "one_shot", 3),
    ("all_reduce", "tree", 5),
    ("all_gather", "one_shot", 4),
    ("reduce_scatter", "ring", 3),
    ("all_to_all", "pairwise", 3),
    ("broadcast", "tree", 5),
    ("reduce", "chain", 4),
]


def check_mutations(collective: str, schedule: str, ranks: int, seeds: range) -> tuple[int, int]:
    """(refused, passed); what passes must run and be right on random data, twice in a row, at uneven sizes too."""
    root = 1 if collective in ("broadcast", "reduce") else None
    plan = list(build_all(collective, schedule, ranks, root))
    refused = passed = 0
    for seed in seeds:
        mutated, what = mutate(plan, random.Random(seed))
        try:
            verify(mutated)
        except ScheduleError:
            refused += 1
            continue
        passed += 1
        for k in range(3):
            try:
                run_and_check(mutated, seed * 10 + k, op="avg" if "reduce" in collective else "sum", in_place=k == 1)
            except (ScheduleError, AssertionError) as error:
                pytest.fail(f"the verifier passed {what} (seed {seed}), but running it says: {error}")
    return refused, passed


@pytest.mark.parametrize(("collective", "schedule", "ranks"), MUTATED)
def test_mutations_are_refused_or_harmless(collective: str, schedule: str, ranks: int) -> None:
    refused, _ = check_mutations(collective, schedule, ranks, range(60))
    assert refused > 20  # a verifier that lets everything pass would leave 0


@pytest.mark.long
@pytest.mark.parametrize(("collective", "schedule", "ranks"), MUTATED)
def test_many_mutations_are_refused_or_harmless(collective: str, schedule: str, ranks: int) -> None:
    refused, passed = check_mutations(collective, schedule, ranks, range(100, 1500))
    assert refused > 400
    assert passed > 0
