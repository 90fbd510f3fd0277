"""The verifier: proves that the programs of all ranks together do the collective, whatever the message sizes.

What it proves, and how, is docs/program.md's last section. Exact, symbolic, no timing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringcomm.program.lending import refuse_unsafe_lending
from ringcomm.program.numerics import refuse_other_tree
from ringcomm.program.ops import CUT, REDUCING, Collective, Program, ScheduleError
from ringcomm.program.plan import Plan
from ringcomm.program.replay import Replay
from ringcomm.program.steady import refuse_late_deadlock, steady_loops
from ringcomm.program.values import Values, ranks_text

Loops = list[int]


def verify(programs: Sequence[Program], slots: int | None = None, *, tree_order: bool = False) -> None:
    """programs[i] is rank i's program; slots: how many each FIFO has (default: the number the programs were built for).

    tree_order: also refuse a reduction whose result is not combined by the tree over group ranks (docs/numerics.md).
    Raises ScheduleError naming rank, step, chunk and loop, and for a deadlock who waits for whom.
    """
    verify_sequence([programs], slots, tree_order=tree_order)


def verify_sequence(
    sequence: Sequence[Sequence[Program]], slots: int | None = None, *, tree_order: bool = False
) -> None:
    """Each plan alone (called twice in a row), then all of them one after another, twice, on the same connections."""
    if not sequence:
        raise ScheduleError("sequence: empty; give the programs of at least one call")
    plans = [Plan(programs) for programs in sequence]
    for i, plan in enumerate(plans):
        if plan.ranks != plans[0].ranks:
            raise ScheduleError(f"sequence[{i}]: {plan.ranks} ranks, must be {plans[0].ranks} as in the first")
    if slots is None:
        slots = min(plan.slots for plan in plans)
    for plan in plans:
        patterns = loop_patterns(plan, slots)
        for first, second in zip(patterns, [*patterns[1:], patterns[0]], strict=True):
            _replay([plan, plan], [first, second], slots, tree_order)
        refuse_late_deadlock(plan, slots)
        refuse_unsafe_lending(plan)
    if len(plans) > 1:
        _verify_mixed(plans, slots)


def _verify_mixed(plans: Sequence[Plan], slots: int) -> None:
    patterns = [loop_patterns(plan, slots) for plan in plans]
    rows = max(len(p) for p in patterns)
    for i in range(rows):
        once = [p[(i + k) % len(p)] for k, p in enumerate(patterns)]
        _replay([*plans, *plans], [*once, *once], slots)


def _replay(plans: Sequence[Plan], loops: Sequence[Loops], slots: int, tree_order: bool = False) -> None:
    replay = Replay(plans, loops, slots)
    try:
        replay.run()
        for call, plan in enumerate(plans):
            for rank in range(plan.ranks):
                _check_result(replay, call, rank)
                if tree_order:
                    refuse_other_tree(replay, call, rank)
            if plan.collective == Collective.all_reduce:
                _check_same_order(replay, call)
    except ScheduleError as error:
        sizes = "; ".join(f"call {k}: {count}" for k, count in enumerate(loops))
        raise ScheduleError(
            f"{plans[0].collective.name} on {plans[0].ranks} ranks: {error}\n  (loops {sizes})"
        ) from None


def loop_patterns(plan: Plan, slots: int) -> list[Loops]:
    """Loops per length class: one, two, and enough to fill and drain every FIFO; then uneven and empty chunks.

    Longer messages are steady.py's part. Where one message is cut, only its end is uneven; elsewhere every chunk has
    its own length.
    """
    n, most = plan.lengths, steady_loops(plan, slots)
    patterns = [[1] * n, [2] * n, [most] * n]
    if n == 1:
        return patterns
    if plan.collective in CUT:
        for full in sorted({1, n // 2, n - 1}):
            patterns += [[most] * full + [last] + [0] * (n - full - 1) for last in (0, 1, most - 1)]
        patterns.append([1] + [0] * (n - 1))
    else:
        patterns += [[i % 4 for i in range(n)], [(i * 7 + 5) * most // 3 % (most + 1) for i in range(n)]]
        patterns += [[most] + [0] * (n - 1), [0] + [most] * (n - 1), [0] * (n - 1) + [most]]
    return patterns


def _check_result(replay: Replay, call: int, rank: int) -> None:
    plan, memory = replay.plans[call], replay.memory[call][rank]
    program = plan.programs[rank]
    for chunk in range(program.nchunks_out):
        for loop in range(replay.loops[call][_out_length(plan, rank, chunk)]):
            written = memory.out.get((chunk, loop))
            where = f"rank {rank}, OUT {chunk}, loop {loop}, call {call}"
            if written is None:
                raise ScheduleError(f"{where}: no step writes it (a step is missing)")
            value, step = written
            wrong = _wrong_value(replay.values, plan, rank, chunk, value)
            if wrong:
                raise ScheduleError(f"{where}: step {step} ({program.steps[step]}) leaves {wrong}")


def _out_length(plan: Plan, rank: int, chunk: int) -> int:
    n = plan.ranks
    if plan.collective in CUT or plan.collective in (Collective.all_gather, Collective.gather):
        return chunk
    return chunk * n + rank if plan.collective == Collective.all_to_all else rank


def _wrong_value(values: Values, plan: Plan, rank: int, chunk: int, value: int) -> str | None:
    c = plan.collective
    if c in REDUCING and plan.ranks > 1:
        if values.missing(value):
            return f"{values.text(value)}: the contribution of {ranks_text(values.missing(value))} is missing"
        return None if values.finished(value) else "a result that no step finished (finish is missing)"
    root = plan.root if plan.root is not None else 0
    owner, part = {
        Collective.all_reduce: (0, chunk),
        Collective.reduce: (root, chunk),
        Collective.reduce_scatter: (0, 0),
        Collective.broadcast: (root, chunk),
        Collective.all_gather: (chunk, 0),
        Collective.gather: (chunk, 0),
        Collective.all_to_all: (chunk, rank),
        Collective.scatter: (root, rank),
    }[c]
    if value != values.input(owner, part):
        return f"{values.text(value)} where IN {part} of rank {owner} belongs"
    return None


def _check_same_order(replay: Replay, call: int) -> None:
    memory = replay.memory[call]
    for place, (value, step0) in memory[0].out.items():
        for rank in range(1, replay.ranks):
            other, step = memory[rank].out[place]
            if other != value:
                raise ScheduleError(
                    f"rank {rank}, OUT {place[0]}, loop {place[1]}, call {call}: step {step} combines in another order "
                    f"than step {step0} of rank 0, so bits may differ (one rank must compute it, or all in one order)"
                )
