"""The levels of a machine as a tree, and who exchanges with whom on each. No programs here.

A tree is nested tuples with the ranks as leaves, all at one depth: ((0, 1), (2, 3)) is two nodes of two ranks,
(((0, 1), (2, 3)), ((4, 5), (6, 7))) two nodes of two sockets. Level 1 is the innermost.

A message is cut so that every level can share it out: with s_h shares on level h (for most exchanges as many as the
smallest group of that level has parts) into s_1 * ... * s_D chunks, numbered with the share of level 1 as the leading
digit. A *column* of level h is one prefix (l_1 ... l_h): its chunks are neighbours, and in each group of level h one
rank owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Union

from ringcomm.program.ops import ScheduleError

Tree = tuple[Union[int, "Tree"], ...]


@dataclass(frozen=True)
class Team:
    """The ranks that exchange on one level, and which chunks each of them owns afterwards (owners come first).

    Where the outermost level has no owners (all compute everything, or roots of trees do), blocks are its parts.
    """

    level: int
    members: tuple[int, ...]
    blocks: tuple[range, ...]
    """Chunks of member i; members past the last block own nothing."""

    def block(self, member: int) -> range:
        return self.blocks[member] if member < len(self.blocks) else range(0)


def ranks_of(tree: Tree | int) -> list[int]:
    return [tree] if isinstance(tree, int) else [rank for part in tree for rank in ranks_of(part)]


def checked(tree: Tree, ranks: int) -> Tree:
    """The tree without levels on which nothing is exchanged. Raises ScheduleError where it is none over the ranks."""
    found = ranks_of(tree)
    if sorted(found) != list(range(ranks)):
        raise ScheduleError(f"levels={tree}: must hold each rank from 0 to {ranks - 1} once")
    if len({depth for depth in _depths(tree)}) != 1:
        raise ScheduleError(f"levels={tree}: all ranks must lie at one depth")
    return _without_idle_levels(tree)


def _depths(tree: Tree | int, depth: int = 0) -> Iterator[int]:
    if isinstance(tree, int):
        yield depth
    else:
        for part in tree:
            yield from _depths(part, depth + 1)


def height(tree: Tree | int) -> int:
    return 0 if isinstance(tree, int) else 1 + height(tree[0])


def _groups(tree: Tree | int, level: int) -> list[Tree]:
    """All groups of one level."""
    if isinstance(tree, int):
        return []
    return [tree] if height(tree) == level else [group for part in tree for group in _groups(part, level)]


def _without_idle_levels(tree: Tree) -> Tree:
    """Levels where every group has one part are left out, innermost first."""
    for level in range(1, height(tree) + 1):
        if all(len(group) == 1 for group in _groups(tree, level)) and height(tree) > 1:
            return _without_idle_levels(_spliced(tree, level))
    return tree


def _spliced(tree: Tree | int, level: int) -> Tree:
    assert not isinstance(tree, int)
    if height(tree) == level:  # the whole tree is its one part
        part = tree[0]
        assert not isinstance(part, int)
        return part
    if height(tree) == level + 1:
        return tuple(part if isinstance(part, int) else part[0] for part in tree)
    return tuple(_spliced(part, level) for part in tree)


@lru_cache(maxsize=256)
def group_sizes(tree: Tree) -> tuple[tuple[int, ...], ...]:
    """For each level, innermost first, how many parts its groups have."""
    return tuple(tuple(len(group) for group in _groups(tree, level)) for level in range(1, height(tree) + 1))


def share_counts(tree: Tree, shares: Sequence[Callable[[int], int]]) -> tuple[int, ...]:
    """s_1 ... s_D, where shares[h - 1] says into how many a team of so many members cuts what it has on level h."""
    return tuple(min(map(cut, sizes)) for cut, sizes in zip(shares, group_sizes(tree), strict=True))


@lru_cache(maxsize=4096)
def _owners(tree: Tree | int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Who owns each column in this group, columns in order."""
    if isinstance(tree, int):
        return (tree,)
    parts = [_owners(part, counts) for part in tree]
    return tuple(parts[share][column] for column in range(len(parts[0])) for share in range(counts[height(tree) - 1]))


def teams_of(tree: Tree, rank: int, counts: tuple[int, ...]) -> list[Team]:
    """The teams the rank is in, inside first: one on each level up to the first on which it owns nothing."""
    found = []
    for level in range(1, height(tree) + 1):
        group = next(g for g in _groups(tree, level) if rank in ranks_of(g))
        owners = [_owners(part, counts) for part in group]
        mine = next(own for own, part in zip(owners, group, strict=True) if rank in ranks_of(part))
        if rank not in mine:
            break
        column, shares, rest = mine.index(rank), counts[level - 1], prod(counts[level:])
        first = column * shares
        blocks = tuple(range((first + i) * rest, (first + i + 1) * rest) for i in range(shares))
        found.append(Team(level, tuple(own[column] for own in owners), blocks))
    return found


@dataclass(frozen=True)
class Nodes:
    """The two-level view: the parts of the outermost level ("nodes"), and who stands in for whom on another one."""

    tree: Tree

    @cached_property
    def nodes(self) -> list[list[int]]:
        return [ranks_of(part) for part in self.tree]

    @cached_property
    def _node_of(self) -> dict[int, list[int]]:
        return {rank: node for node in self.nodes for rank in node}

    def of(self, rank: int) -> list[int]:
        return self._node_of[rank]

    def from_own(self, rank: int, step: int = 1) -> list[list[int]]:
        """All nodes, the rank's own first and then onwards (step -1: backwards): not all start at the same node."""
        return turned(self.nodes[::step], self.nodes[::step].index(self.of(rank)))

    def from_me(self, rank: int, step: int = 1) -> list[int]:
        """The ranks of the node, this one first and then onwards (step -1: backwards)."""
        return turned(self.of(rank)[::step], self.of(rank)[::step].index(rank))

    def on_node_of(self, rank: int, other: int) -> int:
        """Who on rank's node stands in for `other`: itself if it is there, else the rank of its local index."""
        mine, theirs = self.of(rank), self.of(other)
        return other if other in mine else mine[theirs.index(other) % len(mine)]

    def rows(self, rank: int, node: list[int], step: int = 1) -> list[list[tuple[int, int]]]:
        """(stand-in on rank's node, rank of `node`) for all of `node`, as many at a time as rank's node has ranks."""
        mine, order = self.of(rank), self.from_me(rank, step)
        groups = [node[i : i + len(mine)] for i in range(0, len(node), len(mine))]
        index = {taker: mine.index(taker) for taker in order}
        return [[(taker, group[index[taker]]) for taker in order if index[taker] < len(group)] for group in groups]


def turned(items: list, at: int) -> list:  # type: ignore[type-arg]
    return items[at:] + items[:at]
