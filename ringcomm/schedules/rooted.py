"""Hierarchical broadcast and reduce: from or to a root, over a tree of levels.

broadcast from rank 0 of ranks 0..5 on three nodes of two, one_shot inside, chain across:

    0 --> 2 --> 4      one rank of each node passes on, the other node first
    |     |     |
    1     3     5      and gives to its own

inside two_shot shares the message out: chunk l goes by the rank l behind the root, on every node, so that all of a
node's rails carry:    chunk 0: 0 --> 2 --> 4    chunk 1: 0 --> 1 --> 3 --> 5    each giving to its own node

Every rank has one step a loop and chunk, in the order of the chunks, so loops overlap without any lag. A reduce is the
broadcast backwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Lend, Problem, Program, Ref
from ringcomm.schedules.levels import Tree, checked, group_sizes, ranks_of, turned

ROOTED_INSIDE = ("one_shot", "two_shot", "tree", "chain")
ROOTED_ACROSS = ("one_shot", "tree", "chain")


def broadcast(problem: Problem, tree: Tree, inside: str = "one_shot", across: str = "one_shot") -> Program:
    """The root gives to one rank of every other node and to its own; those give to theirs.

    Bytes between nodes: S for each but the root's. one_shot: all from the root, or with two_shot inside from its node;
    chain, tree: S, 2 S from a node at most.
    """
    if problem.ranks == 1:
        return local_program(problem)
    routes = routes_of(checked(tree, problem.ranks), _root(problem), inside, across)
    b = Builder(problem, cut=len(routes))
    for chunk, route in enumerate(routes):
        parent, children = route[problem.rank].parent, route[problem.rank].all_children
        to = [b.pair_to(peer) for peer in children]
        if parent is None:
            b.send(b.input(chunk), *to, lend=Lend.always)
            b.copy(b.input(chunk), b.output(chunk))
        elif to:
            b.forward(b.pair_from(parent), *to, dst=b.output(chunk), lend=Lend.always)
        else:
            b.receive(b.pair_from(parent), b.output(chunk))
    if problem.rank == problem.root:
        b.drain()
    return b.program()


def reduce(problem: Problem, tree: Tree, inside: str = "one_shot", across: str = "one_shot") -> Program:
    """The broadcast backwards: one rank of each other node takes its node's sum; the root adds up its node, then nodes.

    Bytes: S from each rank but the root (with two_shot inside from each rank but those that pass on, which send more).
    """
    if problem.ranks == 1:
        return local_program(problem)
    routes = routes_of(checked(tree, problem.ranks), _root(problem), inside, across)
    b = Builder(problem, cut=len(routes))
    for chunk, route in enumerate(routes):
        place = route[problem.rank]
        if place.parent is None:
            _sum_at_root(b, place, chunk)
            continue
        operands, to = _operands(b, b.input(chunk), place.all_children), b.pair_to(place.parent)
        if len(operands) > 1:
            b.reduce_send(operands, to, chunk=b.input(chunk))
        else:
            b.send(b.input(chunk), to, lend=Lend.always)
    return b.program()


def _sum_at_root(b: Builder, place: Place, chunk: int) -> None:
    """Level by level, its own node first: where nodes are parts of the tree over group ranks, so is the result."""
    own = b.input(chunk)
    levels = [children for children in reversed(place.children) if children]
    for children in levels:
        b.reduce(_operands(b, own, children), b.output(chunk), finish=children is levels[-1])
        own = b.output(chunk)


def _operands(b: Builder, own: Ref, children: list[int]) -> list[Ref]:
    """In rank order."""
    return [own if i == b.problem.rank else b.pair_from(i) for i in sorted((*children, b.problem.rank))]


@dataclass
class Place:
    """One rank's place on the way of a chunk. children: those on the outermost level first, the longer way."""

    parent: int | None = None
    children: list[list[int]] = field(default_factory=list)

    @property
    def all_children(self) -> list[int]:
        return [child for level in self.children for child in level]


@lru_cache(maxsize=4)  # of all ranks, for tools that build all programs; a rank needs each once
def routes_of(tree: Tree, root: int, inside: str, across: str) -> tuple[dict[int, Place], ...]:
    """For each chunk the place of every rank."""
    if inside != "two_shot" or len(group_sizes(tree)) == 1:
        one = {rank: Place() for rank in ranks_of(tree)}
        _spread(one, tree, root, {True: across, False: "one_shot" if inside == "two_shot" else inside}, True)
        return (one,)
    nodes = [ranks_of(part) for part in tree]
    return tuple(_shared(nodes, root, chunk, across) for chunk in range(min(map(len, nodes))))


def _spread(places: dict[int, Place], group: Tree | int, source: int, kinds: dict[bool, str], outermost: bool) -> None:
    """From `source`, one of the group, to one rank of each part, then within each part."""
    if isinstance(group, int):
        return
    parts = [ranks_of(part) for part in group]
    at = next(i for i, part in enumerate(parts) if source in part)
    local = parts[at].index(source)
    takers = [part[local % len(part)] for part in parts]
    _link(places, turned(takers, at), kinds[outermost])
    for part, taker in zip(group, takers, strict=True):
        _spread(places, part, taker, kinds, False)


def _shared(nodes: list[list[int]], root: int, chunk: int, across: str) -> dict[int, Place]:
    """Two levels: the root to the chunk's rank on its node, across from there, and from there to each node's others."""
    places = {rank: Place() for node in nodes for rank in node}
    at = next(i for i, node in enumerate(nodes) if root in node)
    local = nodes[at].index(root) + chunk
    carriers = [node[local % len(node)] for node in nodes]
    _link(places, turned(carriers, at), across)
    for i, (node, carrier) in enumerate(zip(nodes, carriers, strict=True)):
        giver = root if i == at else carrier
        order = turned(node, node.index(carrier))
        _link(places, [giver, *[rank for rank in order if rank != giver]], "one_shot")
    return places


def _link(places: dict[int, Place], line: list[int], kind: str) -> None:
    """The first of the line gives to the others: to all, round a chain, or down a binary tree."""
    for i, rank in enumerate(line):
        below = {"one_shot": range(1, len(line)) if i == 0 else (), "chain": (i + 1,), "tree": (2 * i + 1, 2 * i + 2)}
        children = [line[k] for k in below[kind] if k < len(line)]
        places[rank].children.append(children)
        for child in children:
            places[child].parent = rank


def _root(problem: Problem) -> int:
    assert problem.root is not None  # Problem refuses rooted collectives without one
    return problem.root
