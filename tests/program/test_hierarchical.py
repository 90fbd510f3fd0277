"""Hierarchical schedules are right on every layout, by proof and by running, and cross levels as seldom as they say."""

from __future__ import annotations

from itertools import product

import pytest

from calls import run_and_check
from ringcomm.program.ops import CUT, ROOTED, Collective, ConnectionKind, Problem, Program, ScheduleError
from ringcomm.program.verify import verify, verify_sequence
from ringcomm.schedules import hierarchical
from ringcomm.schedules.exchange import INSIDE as REDUCE_SCATTER
from ringcomm.schedules.levels import Tree, checked, ranks_of

EXCHANGES = sorted(REDUCE_SCATTER)
OTHERS = ("broadcast", "reduce", "all_gather", "reduce_scatter")


def nodes(*sizes: int) -> Tree:
    """Nodes of so many ranks each, ranks numbered through."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def even_layouts(most: int) -> list[Tree]:
    return [nodes(*[n // k] * k) for n in range(2, most + 1) for k in range(1, n + 1) if n % k == 0]


UNEVEN = [nodes(1, 2), nodes(2, 1), nodes(3, 1, 2), nodes(4, 2, 3), nodes(5, 6, 5), nodes(1, 7), nodes(9, 4, 3)]
SCATTERED: list[Tree] = [((0, 2), (1, 3)), ((5, 0, 3), (1, 4, 2))]
DEEP: list[Tree] = [
    (((0, 1), (2, 3)), ((4, 5), (6, 7))),
    (((0, 1), (2,)), ((3,), (4, 5))),
    (((0,), (1,)), ((2,), (3,))),
    ((((0, 1), (2, 3)), ((4, 5), (6, 7))), (((8, 9), (10, 11)), ((12, 13), (14, 15)))),
]
LAYOUTS = [*even_layouts(6), nodes(4, 4), *UNEVEN[:5], *SCATTERED, *DEEP[:3]]
LARGE = [*[layout for layout in even_layouts(16) if len(ranks_of(layout)) > 6], *UNEVEN, *DEEP]


def programs(collective: str, tree: Tree, root: int | None = None, slots: int = 4, **kinds: str) -> list[Program]:
    generator, n = getattr(hierarchical, collective), len(ranks_of(tree))
    return [generator(Problem(Collective[collective], n, rank, root, slots), tree, **kinds) for rank in range(n)]


def some_roots(collective: str, tree: Tree) -> list[int | None]:
    n = len(ranks_of(tree))
    return [*{0, n // 2, n - 1}] if Collective[collective] in ROOTED else [None]


@pytest.mark.parametrize(("inside", "across"), product(EXCHANGES, EXCHANGES))
def test_all_reduce_is_verified_on_every_layout(inside: str, across: str) -> None:
    for i, tree in enumerate(LAYOUTS):
        verify(programs("all_reduce", tree, slots=(2, 4)[i % 2], inside=inside, across=across))


@pytest.mark.parametrize("collective", OTHERS)
def test_the_others_are_verified_on_every_layout(collective: str) -> None:
    for tree in LAYOUTS:
        for root in some_roots(collective, tree):
            for slots in (2, 4):
                verify(programs(collective, tree, root, slots))


@pytest.mark.long
def test_all_reduce_is_verified_to_16_ranks() -> None:
    for i, tree in enumerate(LARGE):
        verify(programs("all_reduce", tree, inside=EXCHANGES[i % 2], across=EXCHANGES[i // 2 % 2]))


@pytest.mark.long
def test_verified_to_33_ranks() -> None:
    for n in range(17, 34):
        for k in (k for k in range(2, n + 1) if n % k == 0):
            verify(programs("all_reduce", nodes(*[n // k] * k), inside="two_shot", across="ring"))
        uneven = nodes(n // 2, n - n // 2 - 1, 1)
        for collective in ("all_reduce", *OTHERS):
            verify(programs(collective, uneven, some_roots(collective, uneven)[-1]))


@pytest.mark.parametrize("collective", ["all_reduce", *OTHERS])
def test_the_reference_equals_numpy(collective: str) -> None:
    for tree in (nodes(2, 2), nodes(3, 2), *SCATTERED, DEEP[0]):
        for seed, root in enumerate(some_roots(collective, tree)):
            for in_place in (False, True):
                run_and_check(programs(collective, tree, root), seed, "float32", "avg", in_place=in_place)


def test_they_may_follow_each_other_on_one_group() -> None:
    tree = nodes(3, 2)
    verify_sequence([programs(c, tree, some_roots(c, tree)[-1]) for c in ("all_reduce", *OTHERS)])


def crossing(plan: list[Program], tree: Tree) -> list[int]:
    """Slots that each rank sends to another node in one loop."""
    node_of = {rank: i for i, node in enumerate(tree) for rank in ranks_of(node)}
    counts = []
    for p in plan:
        assert all(c.kind == ConnectionKind.pair for c in p.senders)
        peers = [p.senders[ref.index].peer for step in p.steps for ref in step.senders]
        counts.append(sum(node_of[peer] != node_of[p.rank] for peer in peers))
    return counts


@pytest.mark.parametrize("across", EXCHANGES)
@pytest.mark.parametrize("layout", [(2, 2), (4, 4), (3, 3, 3), (2, 2, 2, 2)], ids=str)
def test_all_reduce_crosses_nodes_as_little_as_can_be(layout: tuple[int, ...], across: str) -> None:
    """2 (N - 1)/N of a rank's share S/m of the message, for N nodes of m ranks."""
    tree, n_nodes, m = nodes(*layout), len(layout), layout[0]
    plan = programs("all_reduce", tree, inside="two_shot", across=across)
    chunks = plan[0].nchunks_in
    assert [count / chunks for count in crossing(plan, tree)] == [2 * (n_nodes - 1) / (n_nodes * m)] * (n_nodes * m)


@pytest.mark.parametrize("layout", [(2, 2), (3, 2), (4, 1, 2)], ids=str)
def test_every_shard_crosses_to_each_other_node_once(layout: tuple[int, ...]) -> None:
    tree, n = nodes(*layout), sum(layout)
    assert crossing(programs("all_gather", tree), tree) == [len(layout) - 1] * n
    assert sum(crossing(programs("reduce_scatter", tree), tree)) == n * (len(layout) - 1)
    assert sum(crossing(programs("broadcast", tree, 0), tree)) == len(layout) - 1
    assert sum(crossing(programs("reduce", tree, 0), tree)) == len(layout) - 1


def test_levels_on_which_nothing_is_exchanged_are_left_out() -> None:
    assert checked((((0,), (1,)), ((2,), (3,))), 4) == ((0, 1), (2, 3))
    assert checked(((0, 1, 2),), 3) == (0, 1, 2)
    assert programs("all_reduce", ((0, 1, 2),)) == programs("all_reduce", (0, 1, 2))


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
    tree = nodes(2, 2)
    plan = programs("all_reduce", tree)
    alone = [programs("all_reduce", nodes(2))[p.rank % 2] for p in plan]
    assert Collective.all_reduce in CUT
    with pytest.raises(ScheduleError):
        verify(alone)
    verify(plan)
