"""What a replay says about the numerics of a plan: is every result the tree over group ranks, and made in one step?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringcomm.program.ops import REDUCING, Program, ScheduleError
from ringcomm.program.plan import Plan
from ringcomm.program.replay import Replay


def refuse_other_tree(replay: Replay, call: int, rank: int) -> None:
    """Raises ScheduleError naming the first step that leaves the tree over group ranks, and both trees."""
    wanted = replay.values.trees.over_ranks(replay.ranks)
    for (chunk, loop), value in _results(replay, call, rank):
        if replay.values.tree(value) != wanted:
            raise ScheduleError(
                f"rank {rank}, OUT {chunk}, loop {loop}, call {call}: {_culprit(replay, value, wanted)} the tree over "
                f"group ranks, {replay.values.trees.text(wanted)} (numerics.reproducible)"
            )


def is_tree(programs: Sequence[Program]) -> bool:
    """Whether a plan that `verify` accepts gives results combined by the tree over group ranks."""
    replay = _short(programs)
    wanted = replay.values.trees.over_ranks(replay.ranks)
    return all(replay.values.tree(value) == wanted for value in _all_results(replay))


def is_one_step(programs: Sequence[Program]) -> bool:
    """Whether one step combines all contributions of every result, so that 16-bit floats are rounded once."""
    replay = _short(programs)
    values = replay.values
    return not any(values.operands(part) for value in _all_results(replay) for part in values.operands(value))


def _short(programs: Sequence[Program]) -> Replay:
    """One loop tells: every loop has the same steps, and no step mixes loops."""
    plan = Plan(programs)
    replay = Replay([plan], [[1] * plan.lengths], plan.slots)
    replay.run()
    return replay


def _results(replay: Replay, call: int, rank: int) -> Iterator[tuple[tuple[int, int], int]]:
    """((chunk, loop), value) of each result that one rank keeps; none where nothing is reduced."""
    if replay.plans[call].collective in REDUCING:
        for place, (value, _) in replay.memory[call][rank].out.items():
            yield place, value


def _all_results(replay: Replay) -> list[int]:
    return [value for rank in range(replay.ranks) for _, value in _results(replay, 0, rank)]


def _culprit(replay: Replay, value: int, wanted: int) -> str:
    """The step that made the smallest part of a result that is no part of the wanted tree."""
    values, allowed = replay.values, replay.values.trees.parts(wanted)
    while wrong := [part for part in values.operands(value) if values.tree(part) not in allowed]:
        value = wrong[0]
    text = values.trees.text(values.tree(value))
    if value not in replay.made:  # an input that came as it was
        return f"the result is {text}, not"
    rank, planned = replay.made[value]
    return f"step {planned.index} of rank {rank} ({planned.step}) combines {text}, which is no part of"
