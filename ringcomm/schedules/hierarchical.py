"""Hierarchical: every byte crosses each level of the machine as seldom as it can. Any schedule inside, any across.

all_reduce of ranks 0..3 on two nodes {0, 1} and {2, 3}, two_shot inside and across; the message is cut into 4 chunks,
chunk 2l + k is share l inside and share k across:

    lag 0   inside   0 <-> 1, 2 <-> 3   reduce-scatter: local rank l gets its node's sum of chunks 2l and 2l + 1
    lag 1   across   0 <-> 2, 1 <-> 3   reduce-scatter: node k gets the sum over nodes of chunks k and k + 2, finished
    lag 2   across   0 <-> 2, 1 <-> 3   all-gather of what is finished
    lag 3   inside   0 <-> 1, 2 <-> 3   all-gather

Each phase works one loop behind the one before, so the pieces of a long message are on all levels at the same time.
Where groups of a level differ in size, the smallest says how many ranks of each own chunks; the others give their input
and take the result. Each owner sends across itself, over its own rail.

The collectives with a root are in rooted.py, those with a part for each rank in parts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Collective, Problem, Program, Ref, ScheduleError
from ringcomm.program.order import Trees
from ringcomm.schedules.exchange import ACROSS, INSIDE, Exchange
from ringcomm.schedules.levels import Tree, checked, group_sizes, height, ranks_of, share_counts, teams_of
from ringcomm.schedules.parts import PART_EXCHANGES, all_gather, reduce_scatter
from ringcomm.schedules.registry import ANY, Generator, Order, Schedule
from ringcomm.schedules.rooted import ROOTED_ACROSS, ROOTED_INSIDE, broadcast, reduce
from ringcomm.schedules.shapes import parse, show

NAME = "hierarchical"
ALLOWED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (tuple(INSIDE), tuple(ACROSS)),
    "broadcast": (ROOTED_INSIDE, ROOTED_ACROSS),
    "reduce": (ROOTED_INSIDE, ROOTED_ACROSS),
    "all_gather": (PART_EXCHANGES, PART_EXCHANGES),
    "reduce_scatter": (PART_EXCHANGES, PART_EXCHANGES),
}
"""Collective -> what may run inside and what across."""
MIN_SLOTS = 2


def all_reduce(problem: Problem, tree: Tree, inside: str = "two_shot", across: str = "two_shot") -> Program:
    """inside: the exchange on all levels but the outermost; across: that on the outermost (exchange.py).

    Bytes, where all inside share out: on level h, whose groups have m_h parts, 2 (m_h - 1) / (m_1 ... m_h) S; across
    so for two_shot, ring and halving; one_shot sends (m - 1) times, doubling log2(m) times the share S / (m_1 ...).
    """
    if problem.ranks == 1:
        return local_program(problem)
    tree = checked(tree, problem.ranks)
    kinds = _exchanges(tree, inside, across)
    counts = share_counts(tree, [kind.shares for kind in kinds])
    b = Builder(problem, cut=prod(counts))
    teams = [team for team in teams_of(tree, problem.rank, counts) if len(team.members) > 1]
    down, up = _lags(tree, kinds, problem.slots)
    written = False

    def held(chunk: int) -> Ref:
        return b.output(chunk) if written else b.input(chunk)

    for team in teams:
        kinds[team.level - 1].reduce(b, team, held, down[team.level - 1], team.level == len(kinds))
        written = True
    for team in reversed(teams):
        gather = kinds[team.level - 1].gather
        if gather is not None:
            gather(b, team, up[team.level - 1])
    return b.program()


def _exchanges(tree: Tree, inside: str, across: str) -> list[Exchange]:
    """The exchange of each level, innermost first."""
    return [INSIDE[inside]] * (height(tree) - 1) + [ACROSS[across]]


def _lags(tree: Tree, kinds: list[Exchange], slots: int) -> tuple[list[int], list[int]]:
    """(lags of reducing, lags of gathering) by level: the same on all ranks, one loop between two phases."""
    down: list[int] = []
    up = [0] * len(kinds)
    lag = 0
    for kind, sizes in zip(kinds, group_sizes(tree), strict=True):
        down.append(lag)
        lag += 1 + kind.depth(max(sizes))
    for level in reversed(range(len(kinds))):
        up[level] = lag
        lag += 1
    return down, up


GENERATORS: dict[str, Callable[..., Program]] = {
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
}


def name_of(inside: str, across: str, tree: Tree) -> str:
    """`hierarchical(two_shot,ring)@2x4`: all that a program depends on, and so what ranks compare."""
    return f"{NAME}({inside},{across})@{show(tree)}"


def is_name(text: str) -> bool:
    return text.startswith(f"{NAME}(")


@lru_cache(maxsize=256)
def schedule_of(name: str) -> Schedule:
    """The schedule of such a name, for the collectives that both schedules serve. Raises ScheduleError."""
    kinds, _, shape = name.removeprefix(f"{NAME}(").partition(")@")
    inside, _, across = kinds.partition(",")
    if not shape:
        raise ScheduleError(f"schedule={name!r}: must be such as hierarchical(two_shot,ring)@2x4")
    tree = parse(shape)
    serves = {c: GENERATORS[c] for c, (inner, outer) in ALLOWED.items() if inside in inner and across in outer}
    if not serves:
        raise ScheduleError(
            f"schedule={name!r}: no collective has {inside!r} inside and {across!r} across; {allowed_text()}"
        )
    generators: dict[str | Collective, Generator] = {
        c: partial(generator, tree=tree, inside=inside, across=across) for c, generator in serves.items()
    }
    return Schedule(name, generators, min_slots=MIN_SLOTS, order=_orders(tree, inside, across))


def all_on(shape: str) -> list[Schedule]:
    """Every schedule on nodes of this shape."""
    pairs = {(i, a): None for inner, outer in ALLOWED.values() for i in inner for a in outer}
    return [schedule_of(f"{NAME}({inside},{across})@{shape}") for inside, across in pairs]


def allowed_text() -> str:
    """Who may run inside and across, for errors."""
    return "; ".join(f"{c}: inside {', '.join(i)}, across {', '.join(a)}" for c, (i, a) in ALLOWED.items())


def _orders(tree: Tree, inside: str, across: str) -> dict[str, Order]:
    """What holds for the one group the tree is of: each number is ANY or 1."""
    found = {}
    sizes = group_sizes(tree)
    if inside in INSIDE and across in ACROSS:
        kinds = _exchanges(tree, inside, across)
        fits = [max(of_level) <= k.tree_up_to for k, of_level in zip(kinds, sizes, strict=True)]
        found["all_reduce"] = _order(tree, all(fits), len(tree) <= kinds[-1].one_step_up_to)
    if inside in ROOTED_INSIDE and across in ROOTED_ACROSS:
        # A rank that is no root has room for one step only: its node's sum and a wider one would be one n-ary sum.
        inner = inside if inside != "two_shot" or min(sizes[0]) > 1 else "one_shot"
        fits = [len(sizes) <= 2, *[max(of_level) <= NEST_UP_TO[inner] for of_level in sizes[:-1]]]
        found["reduce"] = _order(tree, all(fits) and len(tree) <= NEST_UP_TO[across], len(tree) <= NEST_UP_TO[across])
    if inside in PART_EXCHANGES and across in PART_EXCHANGES:
        nodes = tuple(tuple(ranks_of(part)) for part in tree)  # the levels within a node are one
        fits = [max(map(len, nodes)) <= NEST_UP_TO[inside], len(nodes) <= NEST_UP_TO[across]]
        found["reduce_scatter"] = _order(nodes, all(fits), len(tree) <= NEST_UP_TO[across])
    return found


# Most members of a level for which reduce and reduce_scatter sum it in one step, in rank order. two_shot inside: a
# node's sum goes to the root together with those of the other nodes.
NEST_UP_TO = {"one_shot": ANY, "two_shot": 1, "tree": 3, "chain": 2, "ring": 2}


def _order(tree: Tree, fits: bool, in_one_step: bool) -> Order:
    """fits: each level's sums are trees over its parts. in_one_step: so are the outermost's, in one step."""
    one_level = len(group_sizes(checked(tree, len(ranks_of(tree))))) == 1
    return Order(tree=ANY if fits and is_aligned(tree) else 1, one_step=ANY if one_level and in_one_step else 1)


@lru_cache(maxsize=256)
def is_aligned(tree: Tree) -> bool:
    """Whether the groups are subtrees of the tree over group ranks: then hierarchical sums may be that tree."""
    trees = Trees()

    def combined(part: Tree | int) -> int:
        return trees.leaf(part) if isinstance(part, int) else trees.over([combined(p) for p in part])

    return combined(tree) == trees.over_ranks(len(ranks_of(tree)))
