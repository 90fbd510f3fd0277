"""Hierarchical schedules are right on every layout, by proof and by running, and cross levels as seldom as they say."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import log2

import pytest

from calls import run_and_check
from ringcomm.program.lending import refuse_unsafe_lending
from ringcomm.program.numerics import is_one_step, is_tree
from ringcomm.program.ops import REDUCING, ROOTED, Collective, Lend, Problem, Program, ScheduleError
from ringcomm.program.plan import Plan
from ringcomm.program.traffic import sent_across
from ringcomm.program.verify import verify, verify_sequence
from ringcomm.schedules import build_all, hierarchical, numerics, roots
from ringcomm.schedules.exchange import ACROSS, INSIDE
from ringcomm.schedules.levels import Tree, checked, ranks_of
from ringcomm.schedules.shapes import layouts, parse, places_of

PAIRS = {c: list(product(inside, across)) for c, (inside, across) in hierarchical.ALLOWED.items()}
DEEP = ["2x2x2", "[[0-1|2]|[3|4-5]]", "2x2x2x2", "3x2x2"]
ODD = ["1+2", "3+1+2", "4+2+3", "[0,2|1,3]", "[0,3,5|1-2,4]", "4+4+3", "2+2+1"]


def plan_of(
    collective: str, pair: tuple[str, str], shape: str, root: int | None = None, slots: int = 4
) -> tuple[Program, ...]:
    name = hierarchical.name_of(*pair, parse(shape))
    return build_all(collective, name, len(places_of(parse(shape))), root, slots)


def some_roots(collective: str, ranks: int) -> list[int | None]:
    return [*{0, ranks // 2, ranks - 1}] if Collective[collective] in ROOTED else [None]


def verified(collective: str, pair: tuple[str, str], shape: str, slots: int = 4) -> None:
    for root in some_roots(collective, len(ranks_of(parse(shape)))):
        verify(plan_of(collective, pair, shape, root, slots))


@pytest.mark.parametrize("ranks", range(1, 17))
@pytest.mark.parametrize("collective", PAIRS)
def test_any_inside_and_any_across_are_verified_to_16_ranks(collective: str, ranks: int) -> None:
    """Each pair on two layouts up to 8 ranks. From there on one, and of all_reduce, whose proof takes long, a third of
    the pairs at each number of ranks, every schedule among them. Layouts and numbers of slots take turns."""
    shapes = layouts(ranks)
    inside, across = hierarchical.ALLOWED[collective]
    for i, pair in enumerate(PAIRS[collective]):
        if collective == "all_reduce" and ranks > 8 and (inside.index(pair[0]) + across.index(pair[1]) + ranks) % 3:
            continue
        for k in range(2 if ranks <= 8 else 1):
            verified(collective, pair, shapes[(i + k) % len(shapes)], slots=(4, 2, 3, 8)[(i // 2 + k) % 4])


@pytest.mark.long
@pytest.mark.parametrize("ranks", range(9, 17))
def test_every_pair_of_all_reduce_is_verified_to_16_ranks(ranks: int) -> None:
    for i, pair in enumerate(PAIRS["all_reduce"]):
        verified("all_reduce", pair, layouts(ranks)[i % len(layouts(ranks))])


@pytest.mark.parametrize("collective", PAIRS)
def test_deep_uneven_and_scattered_ones_are_verified(collective: str) -> None:
    shapes = [*DEEP, *ODD]
    for i in range(max(len(shapes), len(PAIRS[collective]))):
        verified(collective, PAIRS[collective][i % len(PAIRS[collective])], shapes[i % len(shapes)], (2, 4)[i % 2])


@pytest.mark.long
@pytest.mark.parametrize("collective", PAIRS)
def test_every_pair_is_verified_on_every_layout_of_up_to_9_ranks(collective: str) -> None:
    for shape in [shape for n in range(2, 10) for shape in layouts(n)] + DEEP + ODD:
        for pair in PAIRS[collective]:
            for slots in (2, 3, 4):
                verified(collective, pair, shape, slots)


@pytest.mark.long
@pytest.mark.parametrize("ranks", range(17, 34))
def test_verified_to_33_ranks(ranks: int) -> None:
    """Every exchange inside and every one across, on even, uneven and scattered nodes in turn."""
    shapes = [*layouts(ranks), f"{ranks // 2}+{ranks - ranks // 2 - 1}+1"]
    for collective, (inside, across) in hierarchical.ALLOWED.items():
        for i in range(max(len(inside), len(across))):
            pair = inside[i % len(inside)], across[(i + ranks) % len(across)]
            shape = shapes[(i + ranks) % len(shapes)]
            verify(plan_of(collective, pair, shape, some_roots(collective, ranks)[-1]))


@pytest.mark.parametrize("collective", PAIRS)
def test_the_reference_equals_numpy(collective: str) -> None:
    shapes = ["2x2", "3+2", "[0,2|1,3]", "[0,3,5|1-2,4]", "2x2x2", "3x2"]
    for i, pair in enumerate(PAIRS[collective] * 2):
        shape = shapes[(i + i // len(shapes)) % len(shapes)]
        for seed, root in enumerate(some_roots(collective, len(ranks_of(parse(shape))))):
            plan = plan_of(collective, pair, shape, root)
            run_and_check(plan, i + seed, ("float32", "int32")[seed % 2], "avg", in_place=bool(i % 2))


def test_they_may_follow_each_other_on_one_group() -> None:
    for turn in range(3):
        verify_sequence(
            [
                plan_of(c, pairs[(turn * 7 + i * 3) % len(pairs)], "3+2", some_roots(c, 5)[-1])
                for i, (c, pairs) in enumerate(PAIRS.items())
            ]
        )


def crossing(collective: str, pair: tuple[str, str], shape: str, root: int | None = None) -> list[Fraction]:
    return sent_across(plan_of(collective, pair, shape, root), places_of(parse(shape)))


@pytest.mark.parametrize("inside", ["two_shot", "ring", "halving"])
@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
@pytest.mark.parametrize("each", [2, 4])
def test_each_rank_sends_its_share_of_an_all_reduce_across(inside: str, nodes: int, each: int) -> None:
    """For N nodes of m ranks, of a rank's share 1/m of the message: 2 (N - 1)/N of it, N - 1 or log2(N) times all."""
    shape, share = f"{nodes}x{each}", Fraction(1, each)
    for across in ("two_shot", "ring", "halving"):
        sent = crossing("all_reduce", (inside, across), shape)
        assert sum(sent) == 2 * (nodes - 1) * nodes * each * share / nodes
        if across != "halving" or nodes in (2, 4, 8):
            assert set(sent) == {2 * (nodes - 1) * share / nodes}
    assert set(crossing("all_reduce", (inside, "one_shot"), shape)) == {(nodes - 1) * share}
    if nodes in (2, 4, 8):
        assert set(crossing("all_reduce", (inside, "doubling"), shape)) == {int(log2(nodes)) * share}
    assert max(crossing("all_reduce", (inside, "tree"), shape)) <= 2 * share
    assert sum(crossing("all_reduce", (inside, "tree"), shape)) == 2 * (nodes - 1)


def test_the_figures_of_the_example_with_4_nodes_of_8() -> None:
    """docs/hierarchical.md: of 16 GB a rank sends 14 inside, 3 across, 14 inside; in a flat ring 31."""
    plan = plan_of("all_reduce", ("two_shot", "ring"), "4x8")
    assert [16 * part for part in sent_across(plan, places_of(parse("4x8")))] == [3] * 32
    assert [16 * part for part in sent_across(plan, range(32))] == [14 + 3 + 14] * 32
    assert [16 * part for part in sent_across(build_all("all_reduce", "ring", 32), range(32))] == [31] * 32


@pytest.mark.parametrize("inside", ["one_shot", "tree"])
def test_one_rank_may_speak_for_its_node(inside: str) -> None:
    assert crossing("all_reduce", (inside, "doubling"), "4x3") == [2, 0, 0] * 4
    assert crossing("all_reduce", (inside, "two_shot"), "2x4") == [1, 0, 0, 0] * 2


@pytest.mark.parametrize("shape", ["2x2", "3x2", "4+1+2", "[0,2|1,3]", "2x4"])
def test_every_part_crosses_to_each_other_node_once(shape: str) -> None:
    nodes, ranks = len(parse(shape)), len(ranks_of(parse(shape)))
    for collective, pairs in PAIRS.items():
        for pair in pairs if collective != "all_reduce" else ():
            for root in some_roots(collective, ranks):
                assert sum(crossing(collective, pair, shape, root)) == nodes - 1, (collective, pair)


def test_shares_of_a_broadcast_cross_by_all_ranks_of_a_node() -> None:
    for across in ("one_shot", "chain", "tree"):
        sent = crossing("broadcast", ("two_shot", across), "3x4", 5)
        assert {sum(sent[i::4]) for i in range(4)} == {Fraction(2, 4)}
    assert max(crossing("broadcast", ("two_shot", "chain"), "3x4", 5)) == Fraction(1, 4)
    assert max(crossing("broadcast", ("one_shot", "one_shot"), "3x4", 5)) == 2


def test_a_fan_out_counts_once_for_each_reader_on_another_node() -> None:
    assert sent_across(build_all("all_gather", "one_shot", 4), (0, 0, 1, 1)) == [Fraction(1, 2)] * 4
    assert sum(sent_across(build_all("all_reduce", "ring", 8), (0,) * 4 + (1,) * 4)) == 2 * Fraction(14, 8)


@pytest.mark.parametrize("shape", ["2", "3", "5", "2x2", "3x2", "2+1", "2x4", "4+4+3", "4+1", "[0,2|1,3]", "2x2x2"])
def test_what_is_stated_of_orders_is_what_the_programs_do(shape: str) -> None:
    """Among these the tree over group ranks is kept where nodes are its subtrees, and nowhere else."""
    ranks = len(ranks_of(parse(shape)))
    for collective in (c for c in PAIRS if Collective[c] in REDUCING):
        for pair in PAIRS[collective]:
            stated = numerics(collective, hierarchical.name_of(*pair, parse(shape)), ranks)
            plans = [plan_of(collective, pair, shape, root) for root in roots(collective, ranks)]
            assert stated.tree == all(map(is_tree, plans)), (collective, pair)
            assert stated.one_step == all(map(is_one_step, plans)), (collective, pair)


def test_aligned_nodes() -> None:
    assert all(map(hierarchical.is_aligned, map(parse, ("2x2", "2x4", "4x8", "4+4+3", "8+1", "2x2x2", "5"))))
    assert not any(map(hierarchical.is_aligned, map(parse, ("2x3", "3+1", "[0,2|1,3]", "1+2", "2+4", "3x3"))))


def lent(plan: tuple[Program, ...]) -> tuple[int, int]:
    """(sends of memory that lend it in place too, sends of memory)."""
    steps = [step for p in plan for step in p.steps if step.senders and step.lent is not None]
    return sum(step.lend == Lend.always for step in steps), len(steps)


@pytest.mark.parametrize("pair", PAIRS["all_reduce"])
def test_an_all_reduce_lends_all_it_sends_from_memory_but_what_it_goes_on_adding_to(pair: tuple[str, str]) -> None:
    plan = plan_of("all_reduce", pair, "2x4")
    always, total = lent(plan)
    if pair[1] not in ("one_shot", "doubling"):
        assert always == total
        return
    homes = places_of(parse("2x4"))
    for p in plan:
        for step in (s for s in p.steps if s.senders and s.lent is not None):
            leaves = homes[p.senders[step.senders[0].index].peer] != homes[p.rank]
            assert step.lend == (Lend.never if leaves else Lend.always)


def test_the_others_lend_all_they_send_from_memory() -> None:
    for collective in ("broadcast", "reduce", "all_gather", "reduce_scatter"):
        for pair in PAIRS[collective]:
            always, total = lent(plan_of(collective, pair, "3x2", some_roots(collective, 6)[-1]))
            assert always == total > 0


@pytest.mark.parametrize("shape", ["4x8", "[0-15|16-32]"])
def test_lending_is_safe_at_32_ranks(shape: str) -> None:
    for collective, pairs in PAIRS.items():
        for pair in pairs[:: 5 if collective == "all_reduce" else 3]:
            refuse_unsafe_lending(Plan(plan_of(collective, pair, shape, some_roots(collective, 32)[-1])))


def test_the_root_of_a_broadcast_waits_for_its_readers() -> None:
    for pair in PAIRS["broadcast"]:
        assert [p.drain for p in plan_of("broadcast", pair, "2x2", 2)] == [False, False, True, False]


def test_levels_on_which_nothing_is_exchanged_are_left_out() -> None:
    assert checked((((0,), (1,)), ((2,), (3,))), 4) == ((0, 1), (2, 3))
    assert checked(((0, 1, 2),), 3) == (0, 1, 2)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (((0, 1), (1, 2)), "each rank from 0 to 2 once"),
        (((0, 1), (2, 4)), "each rank from 0 to 3 once"),
        ((0, (1, 2)), "one depth"),
    ],
)
def test_a_tree_that_is_none_is_refused(tree: Tree, text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        checked(tree, 3 if 4 not in ranks_of(tree) else 4)


def test_a_missing_hop_is_refused() -> None:
    """The proof is worth something: without what crosses between the nodes it fails."""
    plan = plan_of("all_reduce", ("two_shot", "two_shot"), "2x2")
    alone = [
        hierarchical.all_reduce(Problem(Collective.all_reduce, 4, rank), ((0, 1, 2, 3),), across="ring")
        for rank in range(4)
    ]
    with pytest.raises(ScheduleError):
        verify([plan[0], *alone[1:]])
    verify(plan)
    verify(alone)


def test_every_exchange_is_one_of_those_listed() -> None:
    assert hierarchical.ALLOWED["all_reduce"] == (tuple(INSIDE), tuple(ACROSS))
