"""Every built-in schedule is right at every number of ranks, by proof, by running it, and costs what its text says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from calls import run_and_check
from ringcomm.program.ops import ROOTED, Collective, ConnectionKind, Opcode, Problem, Program, ScheduleError
from ringcomm.program.verify import verify, verify_sequence
from ringcomm.schedules import BUILT_IN, build, build_all, roots

CASES = [(name, c) for name, schedule in BUILT_IN.items() for c in schedule.collectives]
IDS = [f"{name}-{c.name}" for name, c in CASES]
every_schedule = pytest.mark.parametrize(("schedule", "collective"), CASES, ids=IDS)


def some_roots(collective: Collective, ranks: int) -> list[int | None]:
    """All roots of small groups, first, middle and last of larger ones."""
    found = roots(collective, ranks)
    return found if len(found) <= 5 else [found[0], found[ranks // 2], found[-1]]


@every_schedule
def test_verified_to_16_ranks(schedule: str, collective: Collective) -> None:
    for ranks in range(1, 17):
        for root in some_roots(collective, ranks):
            verify(build_all(collective, schedule, ranks, root))


@every_schedule
def test_verified_with_other_slot_counts(schedule: str, collective: Collective) -> None:
    for ranks in (2, 3, 4, 7):
        for slots in (1, 2, 3, 8):
            if slots < BUILT_IN[schedule].min_slots:
                with pytest.raises(ScheduleError, match=f"slots={slots}"):
                    build_all(collective, schedule, ranks, some_roots(collective, ranks)[-1], slots)
            else:
                verify(build_all(collective, schedule, ranks, some_roots(collective, ranks)[-1], slots))


@pytest.mark.long
@every_schedule
def test_verified_to_33_ranks(schedule: str, collective: Collective) -> None:
    for ranks in range(17, 34):
        for root in some_roots(collective, ranks):
            verify(build_all(collective, schedule, ranks, root))


@every_schedule
def test_reference_equals_numpy(schedule: str, collective: Collective) -> None:
    for ranks in (1, 2, 3, 4, 5, 8, 11):
        for k, root in enumerate(some_roots(collective, ranks)[:3]):
            programs = build_all(collective, schedule, ranks, root)
            for seed in range(3):
                dtype = ("float32", "int32", "float64", "float16")[(seed + ranks + k) % 4]
                op = ("sum", "avg")[seed % 2]
                run_and_check(programs, seed * 100 + ranks, dtype, op, in_place=seed == 1)


@pytest.mark.parametrize("op", ["sum", "avg", "product", "min", "max", "band", "bor", "bxor"])
def test_reference_knows_every_op(op: str) -> None:
    for schedule in ("one_shot", "ring"):
        run_and_check(build_all("all_reduce", schedule, 3), 5, "int32", op)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_one_group_may_run_them_in_any_order(ranks: int) -> None:
    """All schedules one after another on the same connections, with few slots as with the default."""
    plans = [build_all(c, name, ranks, some_roots(c, ranks)[-1], slots) for name, c in CASES for slots in (4,)]
    verify_sequence(plans)
    verify_sequence([build_all(c, name, ranks, some_roots(c, ranks)[0], 2) for name, c in reversed(CASES)])


def bytes_sent(program: Program, message: float) -> float:
    """A fan-out slot counts once. Equal chunks: the message over the largest chunk count any rank has."""
    parts = max(program.nchunks_in, program.nchunks_out)
    if program.collective in (Collective.gather, Collective.scatter):
        parts = program.ranks
    return sum(len(step.senders) for step in program.steps) * message / parts


@every_schedule
def test_cost_is_what_the_docstring_says(schedule: str, collective: Collective) -> None:
    text = inspect.getdoc(BUILT_IN[schedule].generators[collective]) or ""
    formulas = {key: re.search(rf"^{key}: (.+)$", text, re.M) for key in ("Steps", "Bytes")}
    assert all(formulas.values()), f"no Steps: or Bytes: line in the docstring of {schedule} {collective.name}"
    for ranks in range(2, 18):
        programs = build_all(collective, schedule, ranks, some_roots(collective, ranks)[0])
        message = 720720.0
        names = {"__builtins__": {}, "n": ranks, "S": message, "min": min, "sum": sum, "range": range}
        want = {key: eval(found[1], names) for key, found in formulas.items() if found}
        assert max(len(p.steps) for p in programs) == want["Steps"], ranks
        assert max(bytes_sent(p, message) for p in programs) == pytest.approx(want["Bytes"]), ranks


def test_ring_of_two_overlaps_three_loops() -> None:
    for rank in (0, 1):
        program = build("all_reduce", "ring", 2, rank)
        found = [(step.opcode, step.lag, step.chunk.index) for step in program.steps]
        assert found == [(Opcode.send, 0, 1 - rank), (Opcode.reduce_send, 1, rank), (Opcode.receive, 2, 1 - rank)]
        assert all(c.kind == ConnectionKind.pair for c in (*program.senders, *program.receivers))


def test_direct_reduces_in_rank_order() -> None:
    for rank in range(5):
        step = build("all_reduce", "one_shot", 5, rank).steps[-1]
        program = build("all_reduce", "one_shot", 5, rank)
        order = [program.receivers[ref.index].peer if not ref.local else rank for ref in step.sources]
        assert order == [0, 1, 2, 3, 4]


def test_trees_share_the_work() -> None:
    """No rank is inside both trees: each sends at most twice the message however many ranks there are."""
    for ranks in range(2, 34):
        for program in build_all("all_reduce", "tree", ranks):
            inner = {step.chunk.index for step in program.steps if step.opcode == Opcode.reduce_send}
            assert len(inner) <= 1, (ranks, program.rank)


def test_build_is_cached_and_refuses_by_name() -> None:
    assert build("all_reduce", "ring", 4, 1) is build("all_reduce", "ring", 4, 1)
    bad: list[tuple[str, Callable[[], object]]] = [
        ("collective='allreduce'", lambda: build("allreduce", "ring", 4, 1)),
        ("schedule='rings'", lambda: build("all_reduce", "rings", 4, 1)),
        ("rank=4", lambda: build("all_reduce", "ring", 4, 4)),
        ("ranks=0", lambda: build("all_reduce", "ring", 0, 0)),
        ("root=None", lambda: build("broadcast", "chain", 4, 1)),
        ("root=4", lambda: build("broadcast", "chain", 4, 1, 4)),
        ("root=0", lambda: build("all_reduce", "ring", 4, 1, 0)),
        ("does not serve broadcast; it serves all_reduce", lambda: build("broadcast", "two_shot", 4, 1, 0)),
        ("slots=1", lambda: build("all_reduce", "ring", 4, 1, slots=1)),
        ("slots=0", lambda: Problem(Collective.all_reduce, 2, 0, slots=0)),
        ("no program", lambda: Problem(Collective.barrier, 2, 0)),
    ]
    for message, call in bad:
        with pytest.raises(ScheduleError, match=re.escape(message)):
            call()
    assert {Collective.broadcast, Collective.reduce, Collective.gather, Collective.scatter} == ROOTED
