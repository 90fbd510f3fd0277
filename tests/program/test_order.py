"""Which plans combine all ranks by the one tree of docs/numerics.md: the verifier says it, and says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from plans import Plan, by_builder, change_step, good
from ringcomm import schedules
from ringcomm.program.build import Builder
from ringcomm.program.numerics import is_one_step, is_tree
from ringcomm.program.ops import REDUCING, ScheduleError
from ringcomm.program.order import Trees
from ringcomm.program.reference import combine
from ringcomm.program.verify import verify
from ringcomm.schedules import BUILT_IN, SCHEDULES, build_all, load_user, numerics, roots
from ringcomm.tools.verify import main

EXAMPLES = Path(__file__).parent / "examples"
REDUCE = [(name, c.name) for name, s in BUILT_IN.items() for c in s.collectives if c in REDUCING]
BY_HAND = {
    1: "0",
    2: "0 + 1",
    3: "(0 + 1) + 2",
    4: "(0 + 1) + (2 + 3)",
    5: "((0 + 1) + (2 + 3)) + 4",
    6: "((0 + 1) + (2 + 3)) + (4 + 5)",
    7: "((0 + 1) + (2 + 3)) + ((4 + 5) + 6)",
    8: "((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))",
    9: "(((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))) + 8",
}


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    yield
    SCHEDULES.clear()
    SCHEDULES.update(BUILT_IN)
    schedules.build.cache_clear()
    schedules.verify_schedule.cache_clear()
    schedules.numerics.cache_clear()


@pytest.mark.parametrize(("ranks", "text"), BY_HAND.items())
def test_the_tree_splits_at_the_largest_power_of_two(ranks: int, text: str) -> None:
    trees = Trees()
    assert trees.text(trees.over_ranks(ranks)) == text


@pytest.mark.parametrize(("ranks", "text"), BY_HAND.items())
def test_the_reference_combines_a_step_by_that_tree(ranks: int, text: str) -> None:
    """Python computes the text as it stands; ten powers of ten in float32 round at every addition."""
    rng = np.random.default_rng(ranks)
    values = (rng.standard_normal((ranks, 500)) * 10.0 ** rng.integers(-5, 5, (ranks, 500))).astype(np.float32)
    names = {f"_{i}": values[i] for i in range(ranks)}
    wanted = eval(re.sub(r"(\d)", r"_\1", text), {"__builtins__": {}}, names)
    assert combine(list(values), "sum", None).tobytes() == wanted.tobytes()
    if ranks > 3:
        from_the_left = values[0].copy()
        for row in values[1:]:
            from_the_left += row
        assert wanted.tobytes() != from_the_left.tobytes()


def _passes(check: Callable[[Sequence[schedules.Program]], bool], collective: str, schedule: str, ranks: int) -> bool:
    return all(check(build_all(collective, schedule, ranks, root)) for root in roots(collective, ranks))


@pytest.mark.parametrize(("schedule", "collective"), REDUCE)
def test_what_a_schedule_states_is_what_its_programs_do(schedule: str, collective: str) -> None:
    for ranks in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16):
        stated = numerics(collective, schedule, ranks)
        assert stated.tree == _passes(is_tree, collective, schedule, ranks), ranks
        assert stated.one_step == _passes(is_one_step, collective, schedule, ranks), ranks


@pytest.mark.parametrize(("schedule", "collective"), REDUCE)
def test_the_verifier_passes_those_that_are_the_tree_and_no_others(schedule: str, collective: str) -> None:
    """A schedule may be the tree for some roots: a chain from 0 to 2 is."""
    for ranks in range(1, 8):
        says = [_refusal(build_all(collective, schedule, ranks, root)) for root in roots(collective, ranks)]
        assert any(says) != numerics(collective, schedule, ranks).tree
        assert all("which is no part of the tree over group ranks" in text for text in says if text)


def _refusal(plan: Sequence[schedules.Program]) -> str:
    try:
        verify(plan, tree_order=True)
    except ScheduleError as error:
        return str(error)
    return ""


def _mirrored(b: Builder, rank: int) -> None:
    """Every rank lists all ranks from the last to the first: equal bits on all, and the wrong tree."""
    b.send(b.input(), b.fan_out())
    operands = [b.input() if i == rank else b.fan_out_from(i) for i in reversed(range(4))]
    b.reduce(operands, b.output(), finish=True, lag=1)


def _lopsided(b: Builder, rank: int) -> None:
    """Rank 0 adds up 1, then 2 and 3 together: right up to the last join."""
    if rank:
        b.send(b.input(), b.pair_to(0))
        b.receive(b.fan_out_from(0), b.output(), lag=1)
        return
    b.reduce([b.input(), b.pair_from(1)], b.output())
    b.reduce_send([b.output(), b.pair_from(2), b.pair_from(3)], b.fan_out(), dst=b.output(), finish=True)


def _swapped(plan: Plan) -> Plan:
    """The star's sum with two ranks in each other's place."""
    sources = plan[0].steps[0].sources
    return change_step(plan, 0, 0, sources=(sources[0], sources[2], sources[1], *sources[3:]))


def _star(ranks: int) -> Plan:
    load_user(EXAMPLES / "star.py", ranks=[ranks])
    return list(build_all("all_reduce", "star", ranks))


REFUSED = {
    "ring": (
        lambda: good("ring", 4),
        r"rank 0, OUT 0, .*: step 1 of rank 2 \(reduce_send receiver 0 \+ IN 0 => sender 0\) combines 1 \+ 2, which is "
        r"no part of the tree over group ranks, \(0 \+ 1\) \+ \(2 \+ 3\)",
    ),
    "mirrored operands": (lambda: by_builder(4, _mirrored), r"combines \(3 \+ 2\) \+ \(1 \+ 0\), which is no part"),
    "lopsided": (lambda: by_builder(4, _lopsided), r"step 1 of rank 0 .*combines \(\(0 \+ 1\) \+ 2\) \+ 3, which"),
    "two ranks swapped": (
        lambda: _swapped(_star(5)),
        r"combines \(\(0 \+ 2\) \+ \(1 \+ 3\)\) \+ 4, .* \(\(0 \+ 1\) \+ \(2 \+ 3\)\) \+ 4",
    ),
    "tree of 5": (lambda: good("tree", 5, "reduce", 3), r"which is no part of the tree"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_order_is_refused_with_step_and_both_trees(name: str) -> None:
    make, says = REFUSED[name]
    verify(make())  # right but for the order
    with pytest.raises(ScheduleError) as caught:
        verify(make(), tree_order=True)
    assert re.search(says, str(caught.value)), str(caught.value)


def test_of_a_users_schedule_the_programs_tell() -> None:
    """Nested sums that are the tree pass at any number of ranks, and are known to round more than once."""
    load_user(EXAMPLES / "binomial.py", ranks=[4])
    load_user(EXAMPLES / "star.py", ranks=[4])
    for ranks in range(2, 14):
        verify(build_all("all_reduce", "binomial", ranks), tree_order=True)
        assert numerics("all_reduce", "binomial", ranks) == schedules.Numerics(tree=True, one_step=ranks == 2)
        assert numerics("all_reduce", "star", ranks) == schedules.Numerics(tree=True, one_step=True)


def test_the_command_proves_orders_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(EXAMPLES / "binomial.py"), "--ranks", "1-6", "--tree-order"]) == 0
    assert main(["ring", "--ranks", "2,4", "--tree-order"]) == 1
    assert main(["ring", "--ranks", "4"]) == 0
    output = capsys.readouterr().out
    assert output.count("right") == 6 + 4 + 3 and output.count("REFUSED") == 2
    assert "which is no part of the tree over group ranks" in output


def test_a_users_word_about_its_order_does_not_count(tmp_path: Path) -> None:
    text = (EXAMPLES / "binomial.py").read_text()
    text = text.replace("b.pair_from(rank + distance)]", "b.pair_from(rank + distance)][::-1]")
    text = text.replace("all_reduce})]", 'all_reduce}, order={"all_reduce": Order(ANY, ANY)})]')
    (tmp_path / "liar.py").write_text(text.replace("import Schedule", "import ANY, Order, Schedule"))
    assert load_user(tmp_path / "liar.py", ranks=[4]) == ["binomial"]
    assert numerics("all_reduce", "binomial", 4) == schedules.Numerics(tree=False, one_step=False)
