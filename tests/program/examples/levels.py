"""Levels in a schedule of one's own: two halves of the ranks, such as the two sockets of a machine."""

from ringcomm.program.ops import Problem, Program
from ringcomm.schedules import Schedule, hierarchical


def halves(problem: Problem) -> tuple[tuple[int, ...], ...]:
    half = (problem.ranks + 1) // 2
    return tuple(range(half)), tuple(range(half, problem.ranks))


def all_reduce(problem: Problem) -> Program:
    return hierarchical.all_reduce(problem, halves(problem), inside="two_shot", across="ring")


def all_gather(problem: Problem) -> Program:
    return hierarchical.all_gather(problem, halves(problem))


SCHEDULES = [Schedule("halves", {"all_reduce": all_reduce, "all_gather": all_gather}, min_slots=2)]
