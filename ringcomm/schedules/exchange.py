"""Exchanges among the ranks of one team, as parts of larger programs.

Each takes the builder, the team, where a chunk's value now is (`held`) and a lag, and adds steps; every slot is taken
in the turn in which it was put (in a double tree one turn later). Chunks of a block go one by one, so that a FIFO never
holds more than the two slots an exchange needs.

Lending. What a member gives away of a chunk comes back to it as that chunk's result, made from what it gave; so all
that is sent from memory may be lent, in place too. Only where members send what they go on adding to themselves
(one_shot across, doubling) nothing shows that it has been read; there IN is lent where calls are not in place, OUT
never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ringcomm.program.build import Builder
from ringcomm.program.ops import Lend, Ref
from ringcomm.schedules.halving import Join, joins_of, path_of
from ringcomm.schedules.levels import Team, turned
from ringcomm.schedules.registry import ANY
from ringcomm.schedules.tree import SLOTS_TO_PIPELINE, Place, double_tree, double_tree_height

Held = Callable[[int], Ref]
Reduce = Callable[[Builder, Team, Held, int, bool], None]
Gather = Callable[[Builder, Team, int], None]


def reduce_direct(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """Each member sends every owner its part, which the owner reduces in one step, in the order of the team."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        for peer in _others(team, me):
            if t < len(team.block(peer)):
                b.send(held(team.block(peer)[t]), b.pair_to(team.members[peer]), lag=lag, lend=Lend.always)
        if t < len(team.block(me)):
            chunk = team.block(me)[t]
            b.reduce(_in_team_order(b, team, held(chunk)), b.output(chunk), finish=finish, lag=lag)


def gather_direct(b: Builder, team: Team, lag: int) -> None:
    """Each owner sends its chunks to all others."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        if t < len(team.block(me)):
            to = [b.pair_to(team.members[peer]) for peer in _others(team, me)]
            b.send(b.output(team.block(me)[t]), *to, lag=lag, lend=Lend.always)
        for peer in _others(team, me):
            if t < len(team.block(peer)):
                b.receive(b.pair_from(team.members[peer]), b.output(team.block(peer)[t]), lag=lag)


def reduce_ring(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """The sum of a block starts behind its owner and walks round to it."""
    n, me = len(team.members), team.members.index(b.problem.rank)
    following, previous = b.pair_to(team.members[(me + 1) % n]), b.pair_from(team.members[me - 1])
    for t in _turns(team):
        for k in range(1, n + 1):
            block = team.block((me - k) % n)
            if t >= len(block):
                continue
            mine = held(block[t])
            operands = [mine, previous] if me == 0 else [previous, mine]
            if k == 1:
                b.send(mine, following, lag=lag, lend=Lend.always)
            elif k < n:
                b.reduce_send(operands, following, chunk=mine, lag=lag)
            else:
                b.reduce(operands, b.output(block[t]), finish=finish, lag=lag)


def gather_ring(b: Builder, team: Team, lag: int) -> None:
    """Each block is forwarded round the ring."""
    n, me = len(team.members), team.members.index(b.problem.rank)
    following, previous = b.pair_to(team.members[(me + 1) % n]), b.pair_from(team.members[me - 1])
    for t in _turns(team):
        for k in range(n):
            block = team.block((me - k) % n)
            if t >= len(block):
                continue
            chunk = b.output(block[t])
            if k == 0:
                b.send(chunk, following, lag=lag, lend=Lend.always)
            elif k < n - 1:
                b.forward(previous, following, dst=chunk, lag=lag, lend=Lend.always)
            else:
                b.receive(previous, chunk, lag=lag)


def reduce_joins(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """Recursive halving (halving.py). With one block it is a binomial tree to the first member."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        partial = [held(block[t]) for block in team.blocks]
        joins = list(joins_of(me, len(team.members), len(team.blocks)))
        for joint in joins:
            for send, take in _paired(joint, me):
                if send is not None:
                    b.send(partial[send.chunk], b.pair_to(team.members[send.keeper]), lag=lag, lend=Lend.always)
                if take is not None:
                    operands = _lower_first(b, partial[take.chunk], team, take.sender)
                    out = b.output(team.blocks[take.chunk][t])
                    b.reduce(operands, out, finish=finish and joint is joins[-1], lag=lag)
                    partial[take.chunk] = out


def gather_joins(b: Builder, team: Team, lag: int) -> None:
    """The same backwards: recursive doubling of what each member has, or down the binomial tree."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        for joint in reversed(list(joins_of(me, len(team.members), len(team.blocks)))):
            for take, send in _paired(joint, me):
                if send is not None:
                    chunk = b.output(team.blocks[send.chunk][t])
                    b.send(chunk, b.pair_to(team.members[send.sender]), lag=lag, lend=Lend.always)
                if take is not None:
                    b.receive(b.pair_from(team.members[take.keeper]), b.output(team.blocks[take.chunk][t]), lag=lag)


def all_to_all_members(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """Each member sends all it holds to all others, and reduces everything: one hop."""
    me = team.members.index(b.problem.rank)
    for t in _turns(team):
        chunk = team.blocks[0][t]
        b.send(held(chunk), *[b.pair_to(team.members[peer]) for peer in _others(team, me)], lag=lag)
        b.reduce(_in_team_order(b, team, held(chunk)), b.output(chunk), finish=finish, lag=lag)


def doubling(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """Recursive doubling: where two blocks of members join, each member gets the other block's sum and adds it.

    Blocks split as the tree of docs/numerics.md does. The right one may be smaller: its member j serves the members j,
    j + size, ... of the left one.
    """
    me = team.members.index(b.problem.rank)
    path = path_of(me, len(team.members))
    for t in _turns(team):
        chunk = team.blocks[0][t]
        mine = held(chunk)
        for block in path:
            left, right = block.halves()
            if me in left:
                at = me - left.first
                to = [right.first + at] if at < right.size else []
                source = right.first + at % right.size
            else:
                at = me - right.first
                to = [left.first + i for i in range(at, left.size, right.size)]
                source = left.first + at
            if to:
                b.send(mine, *[b.pair_to(team.members[peer]) for peer in to], lag=lag)
            operands = _lower_first(b, mine, team, source)
            b.reduce(operands, b.output(chunk), finish=finish and block is path[-1], lag=lag)
            mine = b.output(chunk)


def double_trees(b: Builder, team: Team, held: Held, lag: int, finish: bool) -> None:
    """The two trees of tree.py over the members, each carrying half of what the team has, up and down again.

    A member at depth d in trees of height H sends up at lag + H - d and passes results down at lag + H + d: every slot
    is taken one loop after it was put, and the pieces of a long message are on all depths at the same time.
    """
    n, me = len(team.members), team.members.index(b.problem.rank)
    height = double_tree_height(n) if b.problem.slots >= SLOTS_TO_PIPELINE else 0
    for t in _turns(team):
        for block, place in zip(team.blocks, double_tree(me, n), strict=True):
            depth = place.depth if height else 0
            _up(b, team, held(block[t]), b.output(block[t]), place, lag + height - depth, finish)
            _down(b, team, b.output(block[t]), place, lag + height + depth)


def _up(b: Builder, team: Team, mine: Ref, out: Ref, place: Place, lag: int, finish: bool) -> None:
    me = team.members.index(b.problem.rank)
    from_below = {child: b.pair_from(team.members[child]) for child in place.children}
    operands = [mine if i == me else from_below[i] for i in sorted((*place.children, me))]
    if place.parent is None:
        below = [b.pair_to(team.members[child]) for child in place.children]
        b.reduce_send(operands, *below, dst=out, finish=finish, lag=lag, lend=Lend.always)
    elif place.children:
        b.reduce_send(operands, b.pair_to(team.members[place.parent]), chunk=mine, lag=lag)
    else:
        b.send(mine, b.pair_to(team.members[place.parent]), lag=lag, lend=Lend.always)


def _down(b: Builder, team: Team, out: Ref, place: Place, lag: int) -> None:
    if place.parent is None:
        return
    above, below = b.pair_from(team.members[place.parent]), [b.pair_to(team.members[c]) for c in place.children]
    if below:
        b.forward(above, *below, dst=out, lag=lag, lend=Lend.always)
    else:
        b.receive(above, out, lag=lag)


def _turns(team: Team) -> Iterator[int]:
    return iter(range(len(team.blocks[0])))


def _others(team: Team, me: int) -> list[int]:
    """The other members, the next one first: not all start at the same peer."""
    return turned(list(range(len(team.members))), me)[1:]


def _in_team_order(b: Builder, team: Team, mine: Ref) -> list[Ref]:
    return [mine if rank == b.problem.rank else b.pair_from(rank) for rank in team.members]


def _lower_first(b: Builder, mine: Ref, team: Team, peer: int) -> list[Ref]:
    other = b.pair_from(team.members[peer])
    return [mine, other] if team.members.index(b.problem.rank) < peer else [other, mine]


def _paired(joint: list[Join], me: int) -> Iterator[tuple[Join | None, Join | None]]:
    """(a chunk given away, a chunk kept) in turn: a FIFO need not hold all chunks of a join at once."""
    return zip_longest([j for j in joint if j.sender == me], [j for j in joint if j.keeper == me])


def _all(members: int) -> int:
    return members


def _one(members: int) -> int:
    return 1


def _two(members: int) -> int:
    return 2


@dataclass(frozen=True)
class Exchange:
    """How the members of a team combine what they hold, and how they share the result out again."""

    reduce: Reduce
    gather: Gather | None
    """None: after `reduce` all members have all of the result."""
    shares: Callable[[int], int]
    """Into how many blocks a team of so many members cuts what it has."""
    tree_up_to: int = ANY
    """Most members for which results are combined by the tree of docs/numerics.md over the team."""
    one_step_up_to: int = 2
    """Most members for which one step combines them."""
    depth: Callable[[int], int] = lambda members: 0
    """How many loops behind its first steps its last ones act."""


def _twice_the_height(members: int) -> int:
    return 2 * double_tree_height(members)


INSIDE = {
    "one_shot": Exchange(reduce_direct, gather_direct, _one, one_step_up_to=ANY),
    "two_shot": Exchange(reduce_direct, gather_direct, _all, one_step_up_to=ANY),
    "ring": Exchange(reduce_ring, gather_ring, _all, tree_up_to=2),
    "halving": Exchange(reduce_joins, gather_joins, _all),
    "tree": Exchange(reduce_joins, gather_joins, _one),
}
ACROSS = {
    "one_shot": Exchange(all_to_all_members, None, _one, one_step_up_to=ANY),
    "two_shot": INSIDE["two_shot"],
    "ring": INSIDE["ring"],
    "halving": INSIDE["halving"],
    "doubling": Exchange(doubling, None, _one),
    "tree": Exchange(double_trees, None, _two, tree_up_to=3, one_step_up_to=3, depth=_twice_the_height),
}
