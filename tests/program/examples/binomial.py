"""all_reduce over a binomial tree to rank 0, whose sums are the tree of docs/numerics.md; the result goes to all.

At n = 4:    1 -> 0, 3 -> 2: 0 + 1, 2 + 3        2 -> 0: (0 + 1) + (2 + 3)        0 ==[result]==> 1, 2, 3
"""

from ringcomm.program import Builder, Problem, Program
from ringcomm.schedules import Schedule


def all_reduce(problem: Problem) -> Program:
    b, n, rank = Builder(problem), problem.ranks, problem.rank
    if n == 1:
        b.copy(b.input(), b.output())
        return b.program()
    partial, distance = b.input(), 1
    while distance < n and not rank & distance:  # a rank takes from those above it until it gives its own sum away
        if rank + distance < n:
            last = rank == 0 and 2 * distance >= n
            b.reduce([partial, b.pair_from(rank + distance)], b.output(), finish=last)
            partial = b.output()
        distance *= 2
    if rank == 0:
        b.send(partial, b.fan_out())
    else:
        b.send(partial, b.pair_to(rank - distance))
        b.receive(b.fan_out_from(0), b.output(), lag=1)
    return b.program()


SCHEDULES = [Schedule("binomial", {"all_reduce": all_reduce})]
