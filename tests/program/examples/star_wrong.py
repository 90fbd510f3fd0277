"""The star with its two steps in the wrong order: nobody sends before the result is there."""

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
        b.receive(b.fan_out_from(0), b.output())
        b.send(b.input(), b.pair_to(0))
    return b.program()


SCHEDULES = [Schedule("star_wrong", {"all_reduce": all_reduce})]
