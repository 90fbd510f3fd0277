"""Chain: one long line of ranks, each passing pieces on as they come. For long messages from or to one root.

At n = 4 with root 1:    broadcast  1 --> 2 --> 3 --> 0        reduce  2 --> 3 --> 0 --> 1

Every rank has one step a loop, so loops overlap along the chain without any lag.
"""

from __future__ import annotations

from ringcomm.program.build import Builder, in_rank_order, local_program
from ringcomm.program.ops import Lend, Problem, Program


def broadcast_chain(problem: Problem) -> Program:
    """From the root to the rank before it.

    Steps: 2
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem)
    following, previous = (rank + 1) % n, (rank - 1) % n
    if rank == problem.root:
        b.send(b.input(), b.pair_to(following), lend=Lend.always)
        b.copy(b.input(), b.output())
        b.drain()
    elif following == problem.root:
        b.receive(b.pair_from(previous), b.output())
    else:
        b.forward(b.pair_from(previous), b.pair_to(following), dst=b.output(), lend=Lend.always)
    return b.program()


def reduce_chain(problem: Problem) -> Program:
    """From the rank after the root round to the root, each adding its own input.

    Steps: 1
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem)
    following, previous = (rank + 1) % n, (rank - 1) % n
    if previous == problem.root:
        b.send(b.input(), b.pair_to(following))
        return b.program()
    operands = in_rank_order(b.input(), rank, b.pair_from(previous), previous)
    if rank == problem.root:
        b.reduce(operands, b.output(), finish=True)
    else:
        b.reduce_send(operands, b.pair_to(following), chunk=b.input())
    return b.program()
