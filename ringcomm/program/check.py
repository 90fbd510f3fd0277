"""check(program): is one rank's program well formed? Looks at one rank only; verify.py replays all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ringcomm.program.ops import (
    CUT,
    LEGAL,
    REDUCING,
    Connection,
    ConnectionKind,
    Lend,
    Opcode,
    Program,
    Ref,
    RefKind,
    Rule,
    ScheduleError,
    Step,
    check_group,
    chunk_counts,
)


def check(program: Program) -> None:
    """Raises ScheduleError naming the step and the rule broken; returns nothing when the program is well formed."""
    check_group(program.collective, program.ranks, program.rank, program.root)
    _check_counts(program)
    for name, table in (("sender", program.senders), ("receiver", program.receivers)):
        _check_connections(program, name, table)
    for i, step in enumerate(program.steps):
        _check_step(program, i, step)


def _check_counts(p: Program) -> None:
    if p.slots < 1:
        raise ScheduleError(f"rank {p.rank}: slots={p.slots}: must be at least 1")
    got = (p.nchunks_in, p.nchunks_out)
    want = chunk_counts(p.collective, p.ranks, p.rank, p.root, cut=max(got))
    if got != want or max(got) < (1 if p.collective in CUT else 0):
        if p.collective in CUT:
            allowed = "one count of at least 1 for both, 0 only where the collective has no such buffer on this rank"
        else:
            allowed = f"{want[0]} and {want[1]}"
        raise ScheduleError(
            f"rank {p.rank}: nchunks_in={got[0]}, nchunks_out={got[1]}: {p.collective.name} on rank {p.rank} "
            f"of {p.ranks} (root {p.root}) allows {allowed}"
        )


def _check_connections(p: Program, name: str, table: tuple[Connection, ...]) -> None:
    if len(set(table)) != len(table):
        raise ScheduleError(f"rank {p.rank}: the {name} table lists a connection twice: {table}")
    for i, c in enumerate(table):
        where = f"rank {p.rank}: {name} {i} ({c.kind.name} connection, peer {c.peer})"
        if p.ranks == 1:
            raise ScheduleError(f"{where}: a group of one rank has no connections")
        if name == "sender" and c.kind == ConnectionKind.fan_out:
            if c.peer != -1:
                raise ScheduleError(f"{where}: a fan-out is read by all others; its peer must be -1")
        elif not 0 <= c.peer < p.ranks or c.peer == p.rank:
            raise ScheduleError(f"{where}: peer must be another rank in 0..{p.ranks - 1}")


def _check_step(p: Program, index: int, step: Step) -> None:
    def refuse(rule: str) -> NoReturn:
        raise ScheduleError(f"rank {p.rank}, step {index} ({step}): {rule}")

    rule = LEGAL[step.opcode]
    for what, count, bounds in _counted(rule, step):
        least, most = bounds
        if count < least or (most is not None and count > most):
            allowed = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
            refuse(f"{step.opcode.name} takes {allowed} {what}, not {count}")
    if step.finish and not rule.finish:
        refuse(f"finish is allowed on reduce and reduce_send only, not on {step.opcode.name}")
    if step.lend != Lend.never and (not step.senders or step.lent is None):
        refuse(f"lend is {step.lend.name}: it has no memory that a reader could be shown")
    if step.lag < 0:
        refuse(f"lag {step.lag}: must be 0 or more")
    if step.opcode in (Opcode.reduce, Opcode.reduce_send) and p.collective not in REDUCING:
        refuse(f"{p.collective.name} does not reduce")
    named = (step.chunk, *step.sources, *step.senders, *(() if step.dst is None else (step.dst,)))
    for ref in named:
        _check_ref(p, ref, refuse)
    if not step.chunk.local:
        refuse(f"the governing chunk must be IN or OUT, not {step.chunk}")
    if step.dst is not None and step.dst.kind != RefKind.OUT:
        refuse(f"the destination must be an OUT chunk (IN is never written), not {step.dst}")
    for ref in step.sources:
        if ref.kind == RefKind.SENDER:
            refuse(f"{ref} is no source")
    if any(ref.kind != RefKind.SENDER for ref in step.senders):
        refuse("only entries of the sender table may be listed as senders")
    connections = [ref for ref in (*step.sources, *step.senders) if not ref.local]
    if len(set(connections)) != len(connections):
        refuse("a connection may appear once in a step")


def _counted(rule: Rule, step: Step) -> list[tuple[str, int, tuple[int, int | None]]]:
    received = sum(ref.kind == RefKind.RECEIVER for ref in step.sources)
    return [
        ("sources", len(step.sources), rule.sources),
        ("local sources", len(step.sources) - received, rule.local),
        ("receivers", received, rule.received),
        ("destinations", int(step.dst is not None), rule.dst),
        ("senders", len(step.senders), rule.senders),
    ]


def _check_ref(p: Program, ref: Ref, refuse: Callable[[str], NoReturn]) -> None:
    count = {
        RefKind.IN: p.nchunks_in,
        RefKind.OUT: p.nchunks_out,
        RefKind.RECEIVER: len(p.receivers),
        RefKind.SENDER: len(p.senders),
    }[ref.kind]
    if not 0 <= ref.index < count:
        have = f"0..{count - 1}" if count else "none"
        refuse(f"{ref} is out of range: {p.collective.name} on this rank has {have}")
