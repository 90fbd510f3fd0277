"""`python -m ringcomm verify FILE --ranks 4`: proves the schedules of a file, or built-in ones, right."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ringcomm.program.ops import DEFAULT_SLOTS, Collective, Problem, Program, ScheduleError
from ringcomm.program.verify import verify
from ringcomm.schedules import BUILT_IN, Schedule, hierarchical, roots
from ringcomm.schedules.shapes import layouts, parse, places_of
from ringcomm.schedules.user import read_user


def main(argv: list[str]) -> int:
    """One line per schedule, collective and number of ranks; returns 1 if one is refused, 2 if one cannot be read."""
    parser = argparse.ArgumentParser("python -m ringcomm verify", description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        help="files ending in .py, or names of built-in schedules (default: all but hierarchical); hierarchical means "
        "any schedule inside and across on nodes of all sizes, 'hierarchical(two_shot,ring)@2x4' one on its own nodes",
    )
    parser.add_argument("--ranks", type=_ranks, default=[1, 2, 3, 4], help="such as 4, 2,4,8 or 1-16 (default 1-4)")
    parser.add_argument("--slots", type=int, default=DEFAULT_SLOTS, help=f"slots per FIFO (default {DEFAULT_SLOTS})")
    parser.add_argument("--tree-order", action="store_true", help="results must be the tree of docs/numerics.md too")
    arguments = parser.parse_args(argv)
    try:
        whats = arguments.what or list(BUILT_IN)
        found = [pair for what in whats for pair in _schedules(what, arguments.ranks)]
    except ScheduleError as error:
        print(f"ringcomm verify: {error}", file=sys.stderr)
        return 2
    refused = 0
    for schedule, its_ranks in found:
        for collective in schedule.collectives:
            for ranks in its_ranks:
                refused += not _report(schedule, collective, ranks, arguments.slots, arguments.tree_order)
    return 1 if refused else 0


def _ranks(text: str) -> list[int]:
    """4 | 2,4,8 | 1-16, and lists of these."""
    try:
        found = [n for part in text.split(",") for n in _range(part)]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of rank counts; allowed are 4, 2,4,8, 1-16")
    return found


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _schedules(what: str, ranks: list[int]) -> Iterator[tuple[Schedule, list[int]]]:
    """Each schedule with the numbers of ranks it is to be proved for."""
    if what == hierarchical.NAME:
        for n in ranks:
            for shape in layouts(n):
                yield from ((schedule, [n]) for schedule in hierarchical.all_on(shape))
    elif hierarchical.is_name(what):
        yield hierarchical.schedule_of(what), [len(places_of(parse(what.rpartition("@")[2])))]
    elif what in BUILT_IN:
        yield BUILT_IN[what], ranks
    elif what.endswith(".py"):
        yield from ((schedule, ranks) for schedule in read_user(what))
    else:
        known = ", ".join([*sorted(BUILT_IN), hierarchical.NAME])
        raise ScheduleError(f"{what!r} is neither a file ending in .py nor one of {known}")


def _report(schedule: Schedule, collective: Collective, ranks: int, slots: int, tree_order: bool) -> bool:
    name = f"{schedule.name} {collective.name}, {ranks} ranks, {slots} slots"
    try:
        programs = [p for plan in _verified_plans(schedule, collective, ranks, slots, tree_order) for p in plan]
    except ScheduleError as error:
        print(f"{name}: REFUSED\n  {error}")
        return False
    steps, lag = max(len(p.steps) for p in programs), max(p.max_lag for p in programs)
    print(f"{name}: right ({steps} steps, largest lag {lag})")
    return True


def _verified_plans(
    schedule: Schedule, collective: Collective, ranks: int, slots: int, tree_order: bool
) -> Iterator[list[Program]]:
    for root in roots(collective, ranks):
        plan = [schedule.build(Problem(collective, ranks, rank, root, slots)) for rank in range(ranks)]
        try:
            verify(plan, tree_order=tree_order)
        except ScheduleError as error:
            raise ScheduleError(f"{error}" if root is None else f"root {root}: {error}") from None
        yield plan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
