"""The schedules by name, and `build`, which everyone else calls. Users' own files come in through user.py.

A name may say more than a schedule's: `hierarchical(two_shot,ring)@2x4` names what runs inside and across and the nodes
of the one group it is for (hierarchical.py). It is all that a program depends on, so nothing is kept beside it.

program = build("all_reduce", "ring", ranks=4, rank=1)
table = ringcomm.program.pack.pack(program)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ringcomm.program.numerics import is_one_step, is_tree
from ringcomm.program.ops import DEFAULT_SLOTS, ROOTED, Collective, Problem, Program, ScheduleError
from ringcomm.program.verify import verify
from ringcomm.schedules import chain, direct, halving, hierarchical, pairwise, ring, tree
from ringcomm.schedules.levels import checked, group_sizes, height
from ringcomm.schedules.registry import ANY, Order, Schedule, collective_named
from ringcomm.schedules.shapes import Place, tree_of

BUILT_IN: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            "one_shot",
            {
                "all_reduce": direct.all_reduce_one_shot,
                "broadcast": direct.broadcast_one_shot,
                "reduce": direct.reduce_one_shot,
                "all_gather": direct.all_gather_one_shot,
                "reduce_scatter": direct.reduce_scatter_one_shot,
                "gather": direct.gather_one_shot,
                "scatter": direct.scatter_one_shot,
            },
            order=dict.fromkeys(("all_reduce", "reduce", "reduce_scatter"), Order(tree=ANY, one_step=ANY)),
        ),
        Schedule(
            "two_shot", {"all_reduce": direct.all_reduce_two_shot}, order={"all_reduce": Order(tree=ANY, one_step=ANY)}
        ),
        Schedule("halving", {"all_reduce": halving.all_reduce_halving}, order={"all_reduce": Order(ANY, one_step=2)}),
        Schedule(
            "ring",
            {
                "all_reduce": ring.all_reduce_ring,
                "all_gather": ring.all_gather_ring,
                "reduce_scatter": ring.reduce_scatter_ring,
            },
            min_slots=2,
            order=dict.fromkeys(("all_reduce", "reduce_scatter"), Order(tree=2, one_step=2)),
        ),
        Schedule(
            "tree",
            {"all_reduce": tree.all_reduce_tree, "broadcast": tree.broadcast_tree, "reduce": tree.reduce_tree},
            order=dict.fromkeys(("all_reduce", "reduce"), Order(tree=3, one_step=3)),  # up to 3 a root and its leaves
        ),
        Schedule(
            "chain",
            {"broadcast": chain.broadcast_chain, "reduce": chain.reduce_chain},
            order={"reduce": Order(tree=2, one_step=2)},
        ),
        Schedule("pairwise", {"all_to_all": pairwise.all_to_all_pairwise}),
    )
}

# Built-in schedules and, after load_user, the user's.
SCHEDULES: dict[str, Schedule] = dict(BUILT_IN)


def schedule_named(name: str) -> Schedule:
    """The schedule of that name. Raises ScheduleError listing the names otherwise."""
    if hierarchical.is_name(name):
        return hierarchical.schedule_of(name)
    if name not in SCHEDULES:
        raise ScheduleError(
            f"schedule={name!r}: unknown; allowed: {', '.join(sorted(SCHEDULES))}, hierarchical(INSIDE,ACROSS)@NODES"
        )
    return SCHEDULES[name]


def is_built_in(name: str) -> bool:
    """Whether it is proved by the tests, and not when it is built."""
    return name in BUILT_IN or hierarchical.is_name(name)


@lru_cache(maxsize=1024)
def hierarchical_for(
    collective: str, inside: str, across: str, places: tuple[Place, ...], levels: tuple[str, ...] = ()
) -> str:
    """The name of the schedule that runs `inside` and `across` in a group whose rank i is at places[i].

    Where nothing is to be run inside, or across, the other runs as the schedule of its own that it also is.
    """
    tree = tree_of(places, levels)
    reduced = checked(tree, len(places))
    if height(reduced) > 1:
        return hierarchical.name_of(inside, across, reduced)
    if max(group_sizes(tree)[0]) == len(places):  # one group, or one rank
        # The only one that is no schedule of its own is two_shot of a broadcast or reduce: nothing is to be shared out.
        return inside if _serves(inside, collective) else "one_shot"
    return across if _serves(across, collective) else hierarchical.name_of(inside, across, reduced)


def _serves(name: str, collective: str) -> bool:
    return name in BUILT_IN and collective_named(collective) in BUILT_IN[name].collectives


@lru_cache(maxsize=4096)
def build(
    collective: str | Collective,
    schedule: str,
    ranks: int,
    rank: int,
    root: int | None = None,
    slots: int = DEFAULT_SLOTS,
) -> Program:
    """One rank's program, cached. A user's schedule is verified for these ranks, root and slots before it is returned.

    Raises ScheduleError naming the argument: unknown names, ranks or root out of range, too few slots, or, for a user's
    schedule, the step that breaks a rule.
    """
    chosen = schedule_named(schedule)
    problem = Problem(collective_named(collective), ranks, rank, root, slots)
    if not is_built_in(schedule):
        verify_schedule(problem.collective, schedule, ranks, root, slots)
    return chosen.build(problem)


@lru_cache(maxsize=1024)
def verify_schedule(
    collective: str | Collective, schedule: str, ranks: int, root: int | None = None, slots: int = DEFAULT_SLOTS
) -> None:
    """Verifies all ranks' programs of one schedule together. Raises ScheduleError with the schedule's name in front."""
    verify(build_all(collective, schedule, ranks, root, slots))


def build_all(
    collective: str | Collective, schedule: str, ranks: int, root: int | None = None, slots: int = DEFAULT_SLOTS
) -> tuple[Program, ...]:
    """The programs of all ranks, for tools and tests. Not cached, not verified."""
    wanted = collective_named(collective)
    chosen = schedule_named(schedule)
    return tuple(chosen.build(Problem(wanted, ranks, rank, root, slots)) for rank in range(ranks))


@dataclass(frozen=True)
class Numerics:
    """How one schedule combines in one group: by the tree over group ranks; all contributions in one step."""

    tree: bool
    one_step: bool


@lru_cache(maxsize=1024)
def numerics(collective: str, schedule: str, ranks: int, slots: int = DEFAULT_SLOTS) -> Numerics:
    """For a collective that reduces. Raises ScheduleError where a user's schedule does not serve these ranks."""
    if is_built_in(schedule):
        stated = schedule_named(schedule).order.get(collective, Order())
        return Numerics(ranks <= stated.tree, ranks <= stated.one_step)
    plans = [build_all(collective, schedule, ranks, root, slots) for root in roots(collective, ranks)]
    return Numerics(all(map(is_tree, plans)), all(map(is_one_step, plans)))


def roots(collective: str | Collective, ranks: int) -> list[int | None]:
    """Every root a program can be asked for: all ranks, or just None where the collective has none."""
    return list(range(ranks)) if collective_named(collective) in ROOTED else [None]


from ringcomm.schedules.user import load_user  # noqa: E402  (user.py registers into SCHEDULES above)

__all__ = [
    "ANY",
    "BUILT_IN",
    "SCHEDULES",
    "Numerics",
    "Order",
    "Schedule",
    "build",
    "build_all",
    "hierarchical",
    "hierarchical_for",
    "is_built_in",
    "load_user",
    "numerics",
    "roots",
    "schedule_named",
    "verify_schedule",
]
