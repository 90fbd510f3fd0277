"""Direct schedules: every rank talks to every other, in one exchange (one_shot) or two (two_shot).

one_shot all_reduce at n = 4, each rank r:        two_shot all_reduce at n = 4, each rank r owns chunk r:

    r ==[IN 0]==> fan-out, read by all others         loop L   r --[chunk j]--> j     (pairs)
    r : OUT 0 = IN of 0 + 1 + 2 + 3                   loop L-1 r : chunk r of 0 + 1 + 2 + 3, ==> fan-out
        (own IN in its place)                         loop L-2 r : takes chunk j from the fan-out of j

The costs in the docstrings are for one rank, the largest of all ranks, n >= 2; S is the whole message in bytes (output
of all_gather and gather, input of reduce_scatter and scatter). A fan-out slot counts once: it is copied in once.
Steps take the sources in group-rank order, so all ranks get equal bits whoever computes.

Lending in place: two_shot may, because rank j's result, which overwrites chunk j, was made from it; one_shot may not,
because others still read IN when its own result is written there.
"""

from __future__ import annotations

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Lend, Problem, Program, Ref


def _others(problem: Problem) -> list[int]:
    """The other ranks, the next one first: not all ranks start at the same peer."""
    return [(problem.rank + k) % problem.ranks for k in range(1, problem.ranks)]


def _lags(problem: Problem, stages: int) -> tuple[int, ...]:
    """Lags 0, 1, ... for the stages of a loop. A stage of distance d to its writer needs d + 1 slots to overlap."""
    step = 1 if problem.slots >= 2 else 0
    return tuple(step * i for i in range(stages))


def all_reduce_one_shot(problem: Problem) -> Program:
    """Everyone gives its whole input to everyone; each rank reduces everything.

    Steps: 2
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    early, late = _lags(problem, 2)
    b.send(b.input(), b.fan_out(), lag=early)
    operands = [b.input() if i == problem.rank else b.fan_out_from(i) for i in range(problem.ranks)]
    b.reduce(operands, b.output(), finish=True, lag=late)
    return b.program()


def all_reduce_two_shot(problem: Problem) -> Program:
    """Everyone gives chunk j to rank j, which reduces it and gives the result to all.

    Steps: 2*n - 1
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem, cut=problem.ranks)
    rank, (give, own, take) = problem.rank, _lags(problem, 3)
    for j in _others(problem):
        b.send(b.input(j), b.pair_to(j), lag=give, lend=Lend.always)
    operands = _operands(b, b.input(rank))
    b.reduce_send(operands, b.fan_out(), dst=b.output(rank), finish=True, lag=own, lend=Lend.always)
    for j in _others(problem):
        b.receive(b.fan_out_from(j), b.output(j), lag=take)
    return b.program()


def broadcast_one_shot(problem: Problem) -> Program:
    """The root's fan-out, read by all others.

    Steps: 2
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    if problem.rank == problem.root:
        b.send(b.input(), b.fan_out(), lend=Lend.always)
        b.copy(b.input(), b.output())
        b.drain()
    else:
        b.receive(b.fan_out_from(_root(problem)), b.output())
    return b.program()


def all_gather_one_shot(problem: Problem) -> Program:
    """Everyone's shard on its fan-out, read by all others.

    Steps: n + 1
    Bytes: S/n
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    early, late = _lags(problem, 2)
    b.send(b.input(), b.fan_out(), lag=early, lend=Lend.always)
    b.copy(b.input(), b.output(problem.rank), lag=early)
    for j in _others(problem):
        b.receive(b.fan_out_from(j), b.output(j), lag=late)
    return b.program()


def reduce_one_shot(problem: Problem) -> Program:
    """Everyone sends to the root, which reduces all inputs in one step.

    Steps: 1
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    if problem.rank == problem.root:
        b.reduce(_operands(b, b.input()), b.output(), finish=True)
    else:
        b.send(b.input(), b.pair_to(_root(problem)))
    return b.program()


def reduce_scatter_one_shot(problem: Problem) -> Program:
    """Everyone sends part j to rank j, which reduces all of them in one step.

    Steps: n
    Bytes: (n - 1)/n*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    early, late = _lags(problem, 2)
    for j in _others(problem):
        b.send(b.input(j), b.pair_to(j), lag=early)
    b.reduce(_operands(b, b.input(problem.rank)), b.output(), finish=True, lag=late)
    return b.program()


def gather_one_shot(problem: Problem) -> Program:
    """Everyone sends its part to the root.

    Steps: n
    Bytes: S/n
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    if problem.rank == problem.root:
        b.copy(b.input(), b.output(problem.rank))
        for j in _others(problem):
            b.receive(b.pair_from(j), b.output(j))
    else:
        b.send(b.input(), b.pair_to(_root(problem)))
    return b.program()


def scatter_one_shot(problem: Problem) -> Program:
    """The root sends part j to rank j.

    Steps: n
    Bytes: (n - 1)/n*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    if problem.rank == problem.root:
        for j in _others(problem):
            b.send(b.input(j), b.pair_to(j))
        b.copy(b.input(problem.rank), b.output())
        b.drain()
    else:
        b.receive(b.pair_from(_root(problem)), b.output())
    return b.program()


def _operands(b: Builder, own: Ref) -> list[Ref]:
    """All ranks' contributions in rank order: the pair from each, this rank's own input in its place."""
    return [own if i == b.problem.rank else b.pair_from(i) for i in range(b.problem.ranks)]


def _root(problem: Problem) -> int:
    assert problem.root is not None  # Problem refuses rooted collectives without one
    return problem.root
