"""all_reduce over a star: everyone sends to rank 0, which reduces and gives the result to all.

At n = 4:    1, 2, 3 --[IN 0]--> 0        0: OUT 0 = 0 + 1 + 2 + 3        0 ==[result]==> 1, 2, 3
"""

from ringcomm.program import Builder, Problem, Program
from ringcomm.schedules import Schedule


def all_reduce(problem: Problem) -> Program:
    b = Builder(problem, cut=1)
    if problem.ranks == 1:
        b.copy(b.input(), b.output())
    elif problem.rank == 0:
        operands = [b.input()] + [b.pair_from(i) for i in range(1, problem.ranks)]
        b.reduce_send(operands, b.fan_out(), dst=b.output(), finish=True)
    else:
        b.send(b.input(), b.pair_to(0))
        b.receive(b.fan_out_from(0), b.output(), lag=1)
    return b.program()


SCHEDULES = [Schedule("star", {"all_reduce": all_reduce})]
