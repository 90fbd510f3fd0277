"""A tree of nodes as text, which a schedule's name carries, and the tree of a group from its ranks' node numbers.

`2x4` is two nodes of four ranks, numbered through; `2x2x4` two pods of two such nodes; `3+1` a node of three ranks and
one of one; `[0,2|1,3]` names the ranks of each node; `[[0-3|4-7]|[8-11|12-15]]` has three levels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from ringcomm.program.ops import ScheduleError
from ringcomm.ranges import parse_ranges, show_ranges
from ringcomm.schedules.levels import Tree, checked, group_sizes, height, ranks_of
from ringcomm.topology import LEVELS, Place


def _path(place: Place, levels: Sequence[str]) -> tuple[int, ...]:
    """The groups of a rank, the outermost first: its node's and those on `levels`."""
    if isinstance(place, int):
        return (place,)
    return tuple(number for name, number in zip(LEVELS, place, strict=True) if name == "node" or name in levels)


def tree_of(places: Sequence[Place], levels: Sequence[str] = ()) -> Tree:
    """The nodes of a group, and what else of `levels` is known of every rank.

    Groups in the order of their lowest rank, ranks rising: all ranks of a group find the same tree.
    """
    known = levels if not any(isinstance(place, int) for place in places) else ()
    paths = [_path(place, known) for place in places]
    return _grouped(range(len(paths)), paths, 0)


def _grouped(ranks: Sequence[int], paths: Sequence[tuple[int, ...]], depth: int) -> Tree:
    if depth == len(paths[0]):
        return tuple(ranks)
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        groups.setdefault(paths[rank][depth], []).append(rank)
    return tuple(_grouped(group, paths, depth + 1) for group in groups.values())


def places_of(tree: Tree) -> tuple[int, ...]:
    """The node number of each rank, nodes being the parts of the outermost level."""
    found = {rank: node for node, part in enumerate(tree) for rank in ranks_of(part)}
    return tuple(found[rank] for rank in sorted(found))


def evenly(ranks: int, nodes: int) -> tuple[int, ...]:
    """Node numbers of ranks numbered through, as many on each node as can be."""
    return tuple(rank * nodes // ranks for rank in range(ranks))


def layouts(ranks: int) -> list[str]:
    """Shapes to try a number of ranks on: every even split into several nodes, an uneven and a scattered one."""
    found = [f"{k}x{ranks // k}" for k in range(2, ranks) if ranks % k == 0]
    if ranks > 2:
        found.append(f"{ranks - 1}+1")
        found.append("[" + "|".join(show_ranges(range(i, ranks, 2)) for i in (0, 1)) + "]")
    return [*found, str(ranks)]


def show(tree: Tree) -> str:
    """The shortest text that `parse` reads back."""
    ranks, sizes = ranks_of(tree), group_sizes(tree)
    if ranks == list(range(len(ranks))):
        if all(len(set(of_level)) == 1 for of_level in sizes):
            return "x".join(str(of_level[0]) for of_level in reversed(sizes))
        if height(tree) == 2:
            return "+".join(map(str, sizes[0]))
    return _show(tree)


def _show(tree: Tree) -> str:
    if height(tree) == 1:
        ranks = ranks_of(tree)
        return show_ranges(ranks) if ranks == sorted(ranks) else ",".join(map(str, ranks))
    return "[" + "|".join(_show(part) for part in tree if not isinstance(part, int)) + "]"


@lru_cache(maxsize=256)
def parse(text: str) -> Tree:
    """The tree of such a text. Raises ScheduleError naming what is allowed."""
    try:
        tree = _parsed(text)
        return checked(tree, len(ranks_of(tree)))
    except ValueError as error:
        reason = f": {error}" if isinstance(error, ScheduleError) else ""
        raise ScheduleError(f"nodes={text!r}: allowed are such as 2x4, 3+1 or [0,2|1,3]{reason}") from None


def _parsed(text: str) -> Tree:
    if re.fullmatch(r"[1-9]\d{0,4}(x[1-9]\d{0,4})*", text):
        counts = [int(count) for count in text.split("x")]
        if prod(counts) > 1 << 20:
            raise ValueError
        return _even(counts, 0)
    if re.fullmatch(r"[1-9]\d{0,4}(\+[1-9]\d{0,4})+", text):
        sizes = [int(size) for size in text.split("+")]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
    return _bracketed(text)


def _even(counts: list[int], first: int) -> Tree:
    if len(counts) == 1:
        return tuple(range(first, first + counts[0]))
    each = prod(counts[1:])
    return tuple(_even(counts[1:], first + i * each) for i in range(counts[0]))


def _bracketed(text: str) -> Tree:
    if not text.startswith("["):
        runs = [parse_ranges(run) for run in text.split(",")]
        if not all(runs):
            raise ValueError
        return tuple(rank for run in runs for rank in run)
    if not text.endswith("]"):
        raise ValueError
    parts, depth = [""], 0
    for letter in text[1:-1]:
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise ValueError
    return tuple(_bracketed(part) for part in parts)
