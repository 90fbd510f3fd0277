"""Pairwise: all_to_all in n - 1 rotations; in rotation k rank r sends to r + k and takes from r - k.

At n = 4, who sends to whom:   k = 1: 0>1 1>2 2>3 3>0     k = 2: 0>2 1>3 2>0 3>1     k = 3: 0>3 1>0 2>1 3>2

No two ranks send to the same rank in one rotation. Each pair has its own connection and one slot a loop on it, so all
sends go first and the takes lag a loop behind: nobody waits for a rank that only started late.
"""

from __future__ import annotations

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Problem, Program


def all_to_all_pairwise(problem: Problem) -> Program:
    """Sends in the order r + 1, r + 2, ...; takes in the order r - 1, r - 2, ...

    Steps: 2*n - 1
    Bytes: (n - 1)/n*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem)
    lag = 1 if problem.slots >= 2 else 0
    for k in range(1, n):
        peer = (rank + k) % n
        b.send(b.input(peer), b.pair_to(peer))
    b.copy(b.input(rank), b.output(rank))
    for k in range(1, n):
        peer = (rank - k) % n
        b.receive(b.pair_from(peer), b.output(peer), lag=lag)
    return b.program()
