"""Hierarchical: every byte crosses each level of the machine as seldom as it can.

all_reduce of ranks 0..3 on two nodes {0, 1} and {2, 3}; the message is cut into 4 chunks, chunk 2l + k is share l
inside and share k across:

    lag 0   inside   0 <-> 1, 2 <-> 3   reduce-scatter: local rank l gets its node's sum of chunks 2l and 2l + 1
    lag 1   across   0 <-> 2, 1 <-> 3   reduce-scatter: node k gets the sum over nodes of chunks k and k + 2, finished
    lag 2   across   0 <-> 2, 1 <-> 3   all-gather of what is finished
    lag 3   inside   0 <-> 1, 2 <-> 3   all-gather

Each phase works one loop behind the one before, so the pieces of a long message are on all levels at the same time.
Where groups of a level differ in size, the smallest says how many ranks of each own chunks; the others give their input
and take the result.

The other collectives know two levels: the parts of the outermost one ("nodes") and the ranks in them. What crosses from
one node to another goes between ranks of equal local index (modulo the smaller node), so all of a node's rails carry.
"""

from __future__ import annotations

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Problem, Program, Ref
from ringcomm.schedules.exchange import ALL_GATHER, REDUCE_SCATTER
from ringcomm.schedules.levels import Nodes, Tree, checked, chunk_count, height, teams_of


def all_reduce(problem: Problem, tree: Tree, inside: str = "two_shot", across: str = "two_shot") -> Program:
    """inside: the exchange on all levels but the outermost; across: that on the outermost (exchange.REDUCE_SCATTER).

    Bytes: on level h, whose groups have m_h parts, 2 (m_h - 1) / (m_1 ... m_h) S.
    """
    if problem.ranks == 1:
        return local_program(problem)
    tree = checked(tree, problem.ranks)
    b = Builder(problem, cut=chunk_count(tree))
    top = height(tree)
    kinds = {level: across if level == top else inside for level in range(1, top + 1)}
    teams = [team for team in teams_of(tree, problem.rank) if len(team.members) > 1]
    written = False

    def held(chunk: int) -> Ref:
        return b.output(chunk) if written else b.input(chunk)

    for team in teams:
        REDUCE_SCATTER[kinds[team.level]](b, team, held, team.level - 1, team.level == top)
        written = True
    for team in reversed(teams):
        ALL_GATHER[kinds[team.level]](b, team, 2 * top - team.level)
    return b.program()


def broadcast(problem: Problem, tree: Tree) -> Program:
    """The root gives to one rank of every other node and to its own; those give to theirs.

    Bytes: across S for each other node (the root), inside S for each rank of the node.
    """
    if problem.ranks == 1:
        return local_program(problem)
    b, nodes, root = Builder(problem), Nodes(checked(tree, problem.ranks)), _root(problem)
    to = [b.pair_to(peer) for peer in nodes.given_by(problem.rank, root)]
    if problem.rank == root:
        b.send(b.input(), *to)
        b.copy(b.input(), b.output())
        return b.program()
    source = b.pair_from(nodes.giver(problem.rank, root))
    if to:
        b.forward(source, *to, dst=b.output())
    else:
        b.receive(source, b.output())
    return b.program()


def reduce(problem: Problem, tree: Tree) -> Program:
    """The broadcast backwards: one rank of every other node takes its node's sum and gives it to the root.

    Bytes: S from each rank but the root.
    """
    if problem.ranks == 1:
        return local_program(problem)
    b, nodes, root = Builder(problem), Nodes(checked(tree, problem.ranks)), _root(problem)
    below = sorted([problem.rank, *nodes.given_by(problem.rank, root)])
    operands = [b.input() if i == problem.rank else b.pair_from(i) for i in below]
    if problem.rank == root:
        b.reduce(operands, b.output(), finish=True)
        return b.program()
    to = b.pair_to(nodes.giver(problem.rank, root))
    if len(operands) > 1:
        b.reduce_send(operands, to, chunk=b.input())
    else:
        b.send(b.input(), to)
    return b.program()


def all_gather(problem: Problem, tree: Tree) -> Program:
    """Every shard goes to one rank of each other node, which gives it to its own.

    Bytes: across S/n for each other node; inside S/n for the own shard and each it was given, to each rank of the node.
    """
    if problem.ranks == 1:
        return local_program(problem)
    b, nodes, rank = Builder(problem), Nodes(checked(tree, problem.ranks)), problem.rank
    b.send(b.input(), *[b.pair_to(peer) for peer in nodes.given_by(rank, rank)])
    b.copy(b.input(), b.output(rank))
    for node in nodes.from_own(rank):
        # One shard of each taker at a time: no pair holds more than its reader is about to turn to.
        for row in nodes.rows(rank, node):
            for taker, shard in row:
                if shard != rank:
                    _pass_on(b, nodes, taker, shard)
    return b.program()


def _pass_on(b: Builder, nodes: Nodes, taker: int, shard: int) -> None:
    """What this rank does with a shard that comes to its node by `taker` (its owner, on the owner's node)."""
    rank = b.problem.rank
    if taker != rank:
        b.receive(b.pair_from(taker), b.output(shard))
        return
    to = [b.pair_to(peer) for peer in nodes.given_by(rank, shard)]
    source = b.pair_from(shard)
    if to:
        b.forward(source, *to, dst=b.output(shard))
    else:
        b.receive(source, b.output(shard))


def reduce_scatter(problem: Problem, tree: Tree) -> Program:
    """The all_gather backwards: for each part one rank of every other node sums what its node has and gives it to the
    part's owner, who sums its own node first and then the nodes, in their order.

    Bytes: across S/n for each part this rank sums for another node; inside S/n for each part others sum.
    """
    if problem.ranks == 1:
        return local_program(problem)
    b, nodes, rank = Builder(problem), Nodes(checked(tree, problem.ranks)), problem.rank
    for node in [*nodes.from_own(rank)[1:], nodes.of(rank)]:
        for part in node:
            summed_by = nodes.on_node_of(rank, part)
            if summed_by != rank:
                b.send(b.input(part), b.pair_to(summed_by))
                continue
            local = [b.input(part) if i == rank else b.pair_from(i) for i in nodes.of(rank)]
            if part == rank:
                _finish(b, nodes, local)
            elif len(local) > 1:
                b.reduce_send(local, b.pair_to(part), chunk=b.input(part))
            else:
                b.send(b.input(part), b.pair_to(part))
    return b.program()


def _finish(b: Builder, nodes: Nodes, local: list[Ref]) -> None:
    """The own part: the node's sum (in OUT where there is one to make), then the nodes' sums in their order."""
    rank, own = b.problem.rank, local[0]
    several = len(nodes.nodes) > 1
    if len(local) > 1:
        b.reduce(local, b.output(), finish=not several)
        own = b.output()
    if several:
        sums = [own if rank in node else b.pair_from(nodes.on_node_of(node[0], rank)) for node in nodes.nodes]
        b.reduce(sums, b.output(), finish=True)


def _root(problem: Problem) -> int:
    assert problem.root is not None  # Problem refuses rooted collectives without one
    return problem.root
