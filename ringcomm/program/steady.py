"""Proof that a plan which ran for some loops never deadlocks in longer messages.

In the steady state every turn repeats the one before, so each dependency is (step b at turn T waits for step a at
turn T - d) with a constant d: the step before it (d = 0, or 1 for the first step of a turn), the put of the slot it
takes, and for room the take of the slot `slots` puts earlier by each reader. The distances d may be negative where lags
differ. The endless run deadlocks exactly if some cycle of dependencies has a total distance of 0 or less. A replay of
any fixed number of loops could miss such a cycle, as its turns may spread over the slack of many FIFOs in a row.

One length suffices: a shorter or emptier chunk takes matching puts and takes out of the run, which only loosens the
waits that are left. One call suffices: no step waits for a later call.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringcomm.program.ops import ScheduleError
from ringcomm.program.plan import Plan
from ringcomm.program.replay import Replay

Node = tuple[int, int]  # (rank, step)
MOST_LOOPS = 1 << 16


def refuse_late_deadlock(plan: Plan, slots: int) -> None:
    """Raises ScheduleError with the deadlock's text. The plan must have run `steady_loops` loops without one."""
    if not _has_cycle(plan, dict(_dependencies(plan, slots))):
        return
    loops = 2 * steady_loops(plan, slots)
    while loops < MOST_LOOPS:
        try:
            Replay([plan], [[loops] * plan.lengths], slots).run()
        except ScheduleError as error:
            raise ScheduleError(f"{plan.collective.name} on {plan.ranks} ranks, {loops} loops: {error}") from None
        loops *= 2
    raise ScheduleError(f"{plan.collective.name} on {plan.ranks} ranks deadlocks with {slots} slots in long messages")


def steady_loops(plan: Plan, slots: int) -> int:
    """Loops after which one full turn of the steady state has been seen: all lags in range, every FIFO once round."""
    return slots + plan.max_lag + 2


def _dependencies(plan: Plan, slots: int) -> Iterator[tuple[tuple[Node, Node], int]]:
    """((waiting step, step waited for), distance in turns), read off a replay's steady turns."""
    loops = steady_loops(plan, slots)
    replay = Replay([plan], [[loops] * plan.lengths], slots)
    replay.run()
    for rank, steps in enumerate(plan.steps):
        for i in range(len(steps)):
            yield ((rank, i), (rank, i - 1 if i else len(steps) - 1)), 0 if i else 1
    for fifo in replay.fifos.values():
        writer = fifo.key[1]
        for i, slot in enumerate(fifo.puts):
            if not plan.max_lag + slots <= slot.turn < loops:
                continue
            put = (writer, slot.step)
            for reader, takes in fifo.takes.items():
                step, turn = takes[i]
                yield ((reader, step), put), turn - slot.turn
                step, turn = takes[i - slots]
                yield (put, (reader, step)), slot.turn - turn


def _has_cycle(plan: Plan, distances: dict[tuple[Node, Node], int]) -> bool:
    """Is there a cycle of total distance <= 0? Bellman-Ford on weights that make exactly those cycles negative."""
    count = sum(len(steps) for steps in plan.steps)
    edges = [(b, a, d * (count + 1) - 1) for (b, a), d in distances.items()]
    reach = {(rank, i): 0 for rank, steps in enumerate(plan.steps) for i in range(len(steps))}
    for _ in range(count + 1):
        changed = False
        for b, a, weight in edges:
            if reach[b] + weight < reach[a]:
                reach[a] = reach[b] + weight
                changed = True
        if not changed:
            return False
    return True
