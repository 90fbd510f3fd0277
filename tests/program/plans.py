"""Broken plans: right programs with one thing wrong, each with what the verifier must say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ringcomm.program.build import Builder
from ringcomm.program.ops import Collective, Opcode, Problem, Program, Ref, RefKind, Step
from ringcomm.schedules import build_all

Plan = list[Program]


@dataclass(frozen=True)
class Broken:
    name: str
    plan: Callable[[], Plan]
    says: str  # a regular expression
    slots: int | None = None


def good(schedule: str, ranks: int, collective: str = "all_reduce", root: int | None = None) -> Plan:
    return list(build_all(collective, schedule, ranks, root))


def edit(plan: Plan, rank: int, change: Callable[[list[Step]], object]) -> Plan:
    """The plan with `change` applied to the list of one rank's steps."""
    steps = list(plan[rank].steps)
    change(steps)
    plan[rank] = replace(plan[rank], steps=tuple(steps))
    return plan


def change_step(plan: Plan, rank: int, index: int, **fields: object) -> Plan:
    def change(steps: list[Step]) -> None:
        steps[index] = replace(steps[index], **fields)  # type: ignore[arg-type]

    return edit(plan, rank, change)


def by_builder(ranks: int, write: Callable[[Builder, int], None], cut: int = 1) -> Plan:
    """All ranks' all_reduce programs, written by one function of (builder, rank)."""
    plan = []
    for rank in range(ranks):
        b = Builder(Problem(Collective.all_reduce, ranks, rank), cut)
        write(b, rank)
        plan.append(b.program())
    return plan


def IN(index: int) -> Ref:
    return Ref(RefKind.IN, index)


def OUT(index: int) -> Ref:
    return Ref(RefKind.OUT, index)


def _receive_first(b: Builder, rank: int) -> None:
    """Both ranks wait for the other before they send."""
    peer = 1 - rank
    b.reduce([b.input(), b.pair_from(peer)] if rank == 0 else [b.pair_from(peer), b.input()], b.output(), finish=True)
    b.send(b.input(), b.pair_to(peer))


def _own_first(b: Builder, rank: int) -> None:
    b.send(b.input(), b.fan_out())
    b.reduce([b.input(), *(b.fan_out_from(i) for i in range(3) if i != rank)], b.output(), finish=True)


def _overwrite(b: Builder, rank: int) -> None:
    """The partial sum goes to OUT before IN is sent: in place, the peer gets the wrong data."""
    peer = 1 - rank
    b.send(b.input(), b.pair_to(peer))
    b.reduce([b.input(), b.pair_from(peer)] if rank == 0 else [b.pair_from(peer), b.input()], b.output(), finish=True)
    b.send(b.input(), b.pair_to(peer))
    b.skip(b.pair_from(peer), b.input())


def _partial_then_finish_twice(b: Builder, rank: int) -> None:
    peer = 1 - rank
    b.send(b.input(), b.pair_to(peer))
    b.reduce([b.input(), b.pair_from(peer)], b.output(), finish=True)
    b.send(b.output(), b.pair_to(peer))
    b.reduce([b.output(), b.pair_from(peer)], b.output(), finish=True)


def _two_sends_one_taken(b: Builder, rank: int) -> None:
    peer = 1 - rank
    b.send(b.input(), b.pair_to(peer))
    b.send(b.input(), b.pair_to(peer))
    b.reduce([b.input(), b.pair_from(peer)] if rank == 0 else [b.pair_from(peer), b.input()], b.output(), finish=True)


def _skip(receiver: int) -> Step:
    return Step(Opcode.skip, IN(0), (Ref(RefKind.RECEIVER, receiver),), lag=1)


def _lagging_reader() -> Plan:
    """Rank 2 reads the fan-outs seven loops late: more than the slots ahead of it and behind it hold."""
    return change_step(good("one_shot", 3), 2, 1, lag=7)


def _skipped_reader() -> Plan:
    """Rank 3 does not touch the fan-out of rank 1, which counts on all its readers."""
    return edit(good("one_shot", 4, "broadcast", 1), 3, lambda steps: steps.clear())


def late_deadlock() -> Plan:
    """Runs up to 24 loops and deadlocks at 25: rank 7 has to be 3 turns ahead of rank 6, that of 5, ... down to rank 0.

    Ranks 0 to 6 pass slots up to 7, taken with lag 7 of 4 slots; 7, 8, ..., 11, 0 hold each other back by 4 turns.
    """
    plan = []
    for rank in range(12):
        b = Builder(Problem(Collective.broadcast, 12, rank, 7))
        if rank == 7:
            b.send(b.input(), b.pair_to(6), b.pair_to(8))
            b.copy(b.input(), b.output())
            b.skip(b.pair_from(6), b.output(), lag=7)
        elif rank < 7:
            b.receive(b.pair_from(rank + 1), b.output())
            if rank > 0:
                b.send(b.output(), b.pair_to(rank - 1))
            b.send(b.output(), b.pair_to(rank + 1))
            b.skip(b.pair_from(rank - 1 if rank else 11), b.output(), lag=7 if rank else 4)
        else:
            b.send(b.output(), b.pair_to((rank + 1) % 12), lag=rank - 7)
            b.receive(b.pair_from(rank - 1), b.output(), lag=rank - 8)
        plan.append(b.program())
    return plan


def _swapped_receives() -> Plan:
    plan = good("ring", 4)

    def swap(steps: list[Step]) -> None:
        steps[-1], steps[-2] = steps[-2], steps[-1]

    return edit(plan, 2, swap)


BROKEN = [
    Broken(
        "missing step",
        lambda: edit(good("two_shot", 4), 2, lambda steps: steps.pop()),
        r"rank 1, step 3, chunk 1, loop 0.*never taken by rank 2",
    ),
    Broken(
        "missing local step",
        lambda: edit(good("one_shot", 3, "all_gather"), 1, lambda steps: steps.pop(1)),
        r"rank 1, OUT 1, loop 0.* no step writes it",
    ),
    Broken(
        "double add",
        lambda: change_step(good("ring", 3), 1, 2, sources=(Ref(RefKind.RECEIVER, 0), IN(1), IN(1))),
        r"rank 1, step 2 .*contribution of rank 1 twice",
    ),
    Broken(
        "cycle that deadlocks",
        lambda: by_builder(2, _receive_first),
        r"deadlock.*rank 0 -> rank 1 -> rank 0\n.*rank 0, step 0 .*waits for a slot from rank 1.*\n.*rank 1, step 0 ",
    ),
    Broken("needs more slots", lambda: good("ring", 2), r"deadlock with 3 slots(.|\n)*step \d", slots=3),
    Broken(
        "wrong chunk",
        lambda: change_step(good("ring", 4), 0, 0, sources=(IN(2),), chunk=IN(2)),
        r"rank 1, step 1 .*put by step 0 of rank 0, which sent chunk 2 .*expected here: chunk 3",
    ),
    Broken(
        "chunks of different length in one step",
        lambda: change_step(good("ring", 4), 0, 0, sources=(IN(2),)),
        r"rank 0, step 0 .*IN 2 need not have the length of the governing chunk IN 3",
    ),
    Broken(
        "left-over slot",
        lambda: by_builder(2, _two_sends_one_taken),
        r"step \d.*(put by step 1 of rank|never taken)",
    ),
    Broken(
        "in-place overwrite",
        lambda: by_builder(2, _overwrite),
        r"rank \d, step 2 .*reads IN 0 after step 1 wrote OUT 0, the same memory",
    ),
    Broken(
        "missing finish",
        lambda: change_step(good("two_shot", 3), 1, 2, finish=False),
        r"OUT 1.*step \d .*finish is missing",
    ),
    Broken(
        "double finish",
        lambda: by_builder(2, _partial_then_finish_twice),
        r"step 3 .*finished already",
    ),
    Broken(
        "finish too early",
        lambda: change_step(good("ring", 4), 2, 1, finish=True),
        r"rank 2, step 1 .*finishes a result that lacks the contribution of ranks",
    ),
    Broken(
        "unequal order on ranks", lambda: by_builder(3, _own_first), r"step 1 combines in another order than step 1"
    ),
    Broken(
        "skipped reader", _skipped_reader, r"rank 1, step 0.*fan-out of rank 1 is never taken by rank 3|rank 3, OUT 0"
    ),
    Broken(
        "fan-out reader lagging",
        _lagging_reader,
        r"deadlock with 4 slots(.|\n)*step 0 .*room on the fan-out of rank 0, whose slowest reader is rank 2",
    ),
    Broken(
        "partial result",
        lambda: change_step(
            edit(good("one_shot", 3), 2, lambda steps: steps.append(_skip(1))),
            2,
            1,
            finish=False,
            sources=(Ref(RefKind.RECEIVER, 0), IN(0)),
        ),
        r"rank 2, OUT 0.*step 1 .*contribution of rank 1 is missing",
    ),
    Broken("swapped receives", _swapped_receives, r"rank 2, step \d.*expected here"),
    Broken(
        "read before write",
        lambda: change_step(good("ring", 4), 3, 4, sources=(OUT(0),), chunk=OUT(0)),
        r"rank 3, step 4 .*reads OUT 0 before any step wrote it",
    ),
    Broken(
        "lags that disorder a connection",
        lambda: change_step(good("ring", 4), 0, 0, lag=1),
        r"step \d .*expected here",
    ),
    Broken(
        "ends too early",
        lambda: edit(good("chain", 3, "broadcast", 0), 1, lambda steps: steps.clear()),
        r"deadlock(.|\n)*rank 2, step 0 .*waits for a slot from rank 1.*\(rank 1 has ended its program\)",
    ),
]

ILLEGAL = [
    Broken(
        "copy to IN", lambda: change_step(good("one_shot", 2, "all_gather"), 0, 1, dst=IN(0)), r"step 1 .*IN is never"
    ),
    Broken(
        "finish on a send",
        lambda: change_step(good("ring", 2), 0, 0, finish=True),
        r"step 0 .*finish is allowed on reduce",
    ),
    Broken("negative lag", lambda: change_step(good("ring", 2), 1, 1, lag=-1), r"rank 1, step 1 .*lag -1"),
    Broken(
        "one operand",
        lambda: change_step(good("ring", 2), 1, 1, sources=(IN(1),)),
        r"rank 1, step 1 .*takes at least 2 sources, not 1",
    ),
    Broken(
        "send without sender",
        lambda: change_step(good("ring", 2), 1, 0, senders=()),
        r"step 0 .*at least 1 senders, not 0",
    ),
    Broken(
        "chunk out of range", lambda: change_step(good("ring", 2), 1, 2, dst=OUT(2)), r"step 2 .*OUT 2 is out of range"
    ),
    Broken(
        "receiver twice",
        lambda: change_step(good("ring", 2), 1, 1, sources=(Ref(RefKind.RECEIVER, 0),) * 2),
        r"step 1 .*once in a step",
    ),
    Broken(
        "reduction in a gather",
        lambda: change_step(
            good("one_shot", 2, "all_gather"), 0, 2, opcode=Opcode.reduce, sources=(Ref(RefKind.RECEIVER, 0), IN(0))
        ),
        r"step 2 .*all_gather does not reduce",
    ),
    Broken(
        "cut differently",
        lambda: [*good("ring", 4)[:3], good("one_shot", 4)[3]],
        r"rank 3 cuts the message into 1 chunks, rank 0 into 4",
    ),
    Broken("wrong rank's program", lambda: [*good("ring", 4)[:3], good("ring", 4)[0]], r"programs\[3\].*must be"),
    Broken("too few programs", lambda: good("ring", 4)[:3], r"programs\[0\].*must be"),
]
