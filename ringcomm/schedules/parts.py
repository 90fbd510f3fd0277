"""Hierarchical all_gather and reduce_scatter: one part of the message for each rank, over two levels.

The levels are the parts of the outermost one ("nodes") and the ranks in them. What crosses from one node to another
goes between ranks of equal local index (modulo the smaller node), so all of a node's rails carry. one_shot: a shard
goes from its owner to one rank of each other node, and from there to each rank of it. ring: it goes from node to node,
or from rank to rank within a node. A reduce_scatter is the all_gather backwards, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Lend, Problem, Program
from ringcomm.schedules.levels import Nodes, Tree, checked

PART_EXCHANGES = ("one_shot", "ring")


@dataclass(frozen=True)
class Hop:
    """What one rank does with one part. all_gather: takes it from `parent` (None: its own), keeps it, passes it on."""

    part: int
    parent: int | None
    away: tuple[int, ...]
    near: tuple[int, ...]
    """To whom it passes it on: on other nodes, on its own."""


def all_gather(problem: Problem, tree: Tree, inside: str = "one_shot", across: str = "one_shot") -> Program:
    """Every shard goes to one rank of each other node, which gives it to its own.

    Bytes, one_shot: across S/n for each other node; inside S/n for the own shard and each it was given, to each rank of
    the node. ring: as many, to one neighbour.
    """
    if problem.ranks == 1:
        return local_program(problem)
    b, nodes, rank = Builder(problem), _nodes(tree, problem.ranks), problem.rank
    for hop in _hops(nodes, rank, inside, across):
        to = [b.pair_to(peer) for peer in (*hop.away, *hop.near)]
        if hop.parent is None:
            b.send(b.input(), *to, lend=Lend.always)
            b.copy(b.input(), b.output(rank))
        elif to:
            b.forward(b.pair_from(hop.parent), *to, dst=b.output(hop.part), lend=Lend.always)
        else:
            b.receive(b.pair_from(hop.parent), b.output(hop.part))
    return b.program()


def reduce_scatter(problem: Problem, tree: Tree, inside: str = "one_shot", across: str = "one_shot") -> Program:
    """The all_gather backwards: for each part one rank of every other node sums what its node has and gives it to the
    part's owner, who sums its own node first and then the nodes, in their order.

    Bytes: as all_gather's, taken instead of sent.
    """
    if problem.ranks == 1:
        return local_program(problem)
    b, nodes, rank = Builder(problem), _nodes(tree, problem.ranks), problem.rank
    for hop in reversed(_hops(nodes, rank, inside, across)):
        own = b.input(hop.part)
        local = [own if i == rank else b.pair_from(i) for i in sorted((*hop.near, rank))]
        if hop.parent is not None:
            operands = [*local, *[b.pair_from(i) for i in hop.away]]
            if len(operands) > 1:
                b.reduce_send(operands, b.pair_to(hop.parent), chunk=own)
            else:
                b.send(own, b.pair_to(hop.parent), lend=Lend.always)
            continue
        if len(local) > 1:  # the node's sum stays in OUT until the nodes' sums are there
            b.reduce(local, b.output(), finish=not hop.away)
            own = b.output()
        if hop.away:
            b.reduce([own if i == rank else b.pair_from(i) for i in sorted((*hop.away, rank))], b.output(), finish=True)
    return b.program()


@lru_cache(maxsize=64)
def _nodes(tree: Tree, ranks: int) -> Nodes:
    return Nodes(checked(tree, ranks))


def _hops(nodes: Nodes, rank: int, inside: str, across: str) -> list[Hop]:
    """In this rank's order: its own part, then node by node, on each one part of each taker at a time, so that no pair
    holds more than its reader is about to turn to. In a ring what comes first has the shortest way."""
    steps = {"one_shot": 1, "ring": -1}
    return [
        _hop(nodes, rank, taker, part, inside, across)
        for node in nodes.from_own(rank, steps[across])
        for row in nodes.rows(rank, node, steps[inside])
        for taker, part in row
    ]


def _hop(nodes: Nodes, rank: int, taker: int, part: int, inside: str, across: str) -> Hop:
    """taker: who on this node takes the part first (its owner, on the owner's node)."""
    around = nodes.from_me(rank)
    near = around[1:]
    if inside == "ring":
        near = [peer for peer in around[1:2] if peer != taker]
    elif taker != rank:
        near = []
    if taker != rank:
        return Hop(part, around[-1] if inside == "ring" else taker, (), tuple(near))
    turn = nodes.from_own(rank)
    away = [nodes.on_node_of(node[0], part) for node in turn[1:]]
    if across == "ring":
        away = [] if part in turn[1 % len(turn)] else away[:1]
    elif part != rank:
        away = []
    if part == rank:
        return Hop(part, None, tuple(away), tuple(near))
    return Hop(part, nodes.on_node_of(turn[-1][0], part) if across == "ring" else part, tuple(away), tuple(near))
