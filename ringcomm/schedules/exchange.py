"""Reduce-scatter and all-gather among the ranks of one team, as parts of larger programs.

Each takes the builder, the team, and where a chunk's value now is (`held`), and adds steps that all have one lag; every
slot is taken in the turn in which it was put. Chunks of a block go one by one, so that a FIFO never holds more than the
two slots an exchange needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ringcomm.program.build import Builder
from ringcomm.program.ops import Ref
from ringcomm.schedules.levels import Team

Held = Callable[[int], Ref]
Exchange = Callable[[Builder, Team, Held, int, bool], None]


def reduce_scatter_direct(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """Each member sends every owner its part, which the owner reduces in one step, in the order of the team."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        for peer in _others(team, me):
            if t < len(team.block(peer)):
                b.send(held(team.block(peer)[t]), b.pair_to(team.members[peer]), lag=lag)
        if t < len(team.block(me)):
            chunk = team.block(me)[t]
            operands = [held(chunk) if i == me else b.pair_from(rank) for i, rank in enumerate(team.members)]
            b.reduce(operands, b.output(chunk), finish=finish, lag=lag)


def all_gather_direct(b: Builder, team: Team, lag: int) -> None:
    """Each owner sends its chunks to all others."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        if t < len(team.block(me)):
            to = [b.pair_to(team.members[peer]) for peer in _others(team, me)]
            b.send(b.output(team.block(me)[t]), *to, lag=lag)
        for peer in _others(team, me):
            if t < len(team.block(peer)):
                b.receive(b.pair_from(team.members[peer]), b.output(team.block(peer)[t]), lag=lag)


def reduce_scatter_ring(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """The sum of a block starts behind its owner and walks round to it."""
    n, me = len(team.members), team.members.index(b.problem.rank)
    following, previous = b.pair_to(team.members[(me + 1) % n]), b.pair_from(team.members[(me - 1) % n])
    for t in _turns(team):
        for k in range(1, n + 1):
            block = team.block((me - k) % n)
            if t >= len(block):
                continue
            mine = held(block[t])
            if k == 1:
                b.send(mine, following, lag=lag)
            elif k < n:
                b.reduce_send([previous, mine], following, chunk=mine, lag=lag)
            else:
                b.reduce([previous, mine], b.output(block[t]), finish=finish, lag=lag)


def all_gather_ring(b: Builder, team: Team, lag: int) -> None:
    """Each block is forwarded round the ring."""
    n, me = len(team.members), team.members.index(b.problem.rank)
    following, previous = b.pair_to(team.members[(me + 1) % n]), b.pair_from(team.members[(me - 1) % n])
    for t in _turns(team):
        for k in range(n):
            block = team.block((me - k) % n)
            if t >= len(block):
                continue
            chunk = b.output(block[t])
            if k == 0:
                b.send(chunk, following, lag=lag)
            elif k < n - 1:
                b.forward(previous, following, dst=chunk, lag=lag)
            else:
                b.receive(previous, chunk, lag=lag)


REDUCE_SCATTER = {"two_shot": reduce_scatter_direct, "ring": reduce_scatter_ring}
ALL_GATHER = {"two_shot": all_gather_direct, "ring": all_gather_ring}


def _turns(team: Team) -> Iterator[int]:
    return iter(range(len(team.blocks[0])))


def _others(team: Team, me: int) -> list[int]:
    """The other members, the next one first: not all start at the same peer."""
    n = len(team.members)
    return [(me + k) % n for k in range(1, n)]
