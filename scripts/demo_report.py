"""The demo's table and its checks, from the results of the runs; runs nothing and judges no time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

REFERENCE = "gloo"


@dataclass(frozen=True)
class JobFacts:
    """How long a job trains, what it reaches (`goal` and `quick_goal`), and in which field of its result."""

    steps: int
    quick_steps: int
    reaches: str
    goal: float
    quick_goal: float
    higher_is_better: bool


# The goals leave a margin to what gloo reaches from seeds 0 to 2.
JOBS = {
    "ddp_digits": JobFacts(220, 75, "accuracy", 0.95, 0.90, True),
    "fsdp_chars": JobFacts(150, 50, "held_out_loss", 2.4, 2.7, False),
}


@dataclass
class Run:
    """One run of a job: `values` is the JSON it wrote, or None and `problem` says why."""

    job: str
    backend: str
    ranks: int
    values: dict[str, Any] | None
    log: str
    seconds: float
    problem: str | None
    hosts: int = 1
    others: float = 0.0
    """Cores that everything else on the machine used meanwhile, on average."""

    @property
    def name(self) -> str:
        return f"{self.job}, {self.backend}, {self.size}"

    @property
    def size(self) -> str:
        return f"{self.ranks} ranks" + (f" on {self.hosts} hosts" if self.hosts > 1 else "")


@dataclass
class Check:
    name: str
    good: bool
    seen: str


def report(runs: list[Run], quick: bool) -> tuple[str, bool]:
    """The text to print, and whether all runs completed with right values."""
    checks = [check for run in runs for check in own_checks(run, quick)]
    for run in runs:
        for base in bases(run, runs):
            if run.values and base.values:
                checks += compare(run, base)
    lines = ["", *table(runs), "", *schedules(runs), "", "Checks"]
    lines += [f"  {'ok    ' if check.good else 'FAILED'}  {check.name}: {check.seen}" for check in checks]
    bad = sum(not check.good for check in checks)
    lines += ["", f"{len(checks) - bad} checks passed, {bad} failed"]
    return "\n".join(lines), bad == 0 and bool(checks)


def bases(run: Run, runs: list[Run]) -> list[Run]:
    """What a run is compared with: the reference on as many hosts, and, on several, the same backend on one."""
    alike = [r for r in runs if r is not run and (r.job, r.ranks) == (run.job, run.ranks)]
    reference = [r for r in alike if r.backend == REFERENCE and r.hosts == run.hosts and run.backend != REFERENCE]
    return reference[:1] + [r for r in alike if r.backend == run.backend and r.hosts == 1][:1]


def own_checks(run: Run, quick: bool) -> Iterator[Check]:
    """What must hold for a run alone: it completed, over the backend asked for, ranks agree, it learned."""
    if run.values is None:
        yield Check(run.name, False, run.problem or "no result")
        return
    facts, values = JOBS[run.job], run.values
    yield Check(f"{run.name}: completed over this backend", values["backend"] == run.backend, f"{values['backend']}")
    yield Check(
        f"{run.name}: all losses finite, all ranks end with the same bits",
        all(map(math.isfinite, values["losses"])) and values["ranks_agree"],
        f"{len(values['losses'])} losses, digest {values['digest'][:12]}",
    )
    goal, reached = facts.quick_goal if quick else facts.goal, values[facts.reaches]
    good = reached >= goal if facts.higher_is_better else reached <= goal
    side = "at least" if facts.higher_is_better else "at most"
    yield Check(f"{run.name}: {facts.reaches} {side} {goal}", good, f"{reached:.4f}")


def compare(run: Run, base: Run) -> Iterator[Check]:
    """The same seed over another backend, or on one host: equal bits where the sum has one order, else close."""
    assert run.values and base.values
    other = base.backend if run.backend != base.backend else "the same on one host"
    name = f"{run.job}, {run.size}, {run.backend} and {other}"
    mine, theirs = run.values, base.values
    if run.job == "ddp_digits" and run.ranks == 2:
        # a + b has one value in either order, so two right backends cannot differ.
        same = mine["losses"] == theirs["losses"] and mine["digest"] == theirs["digest"]
        yield Check(
            f"{name}: float32 losses and parameters bit-equal", same, distance(mine["losses"], theirs["losses"])
        )
    elif run.job == "ddp_digits":
        first = relative(mine["losses"][:10], theirs["losses"][:10])
        yield Check(f"{name}: first 10 losses within 1e-5", first <= 1e-5, f"largest relative difference {first:.1e}")
        points = 100 * abs(mine["accuracy"] - theirs["accuracy"])
        yield Check(f"{name}: accuracy within 1 point", points <= 1, f"{points:.2f} points apart")
    else:
        apart = relative([mine["held_out_loss"]], [theirs["held_out_loss"]])
        yield Check(f"{name}: bfloat16 final loss within 2 %", apart <= 0.02, f"{100 * apart:.3f} % apart")


def relative(mine: list[float], theirs: list[float]) -> float:
    """The largest |a - b| / |b|; infinite if the lists differ in length or hold something that is not a number."""
    if len(mine) != len(theirs) or not mine:
        return math.inf
    pairs = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(mine, theirs, strict=True)]
    return math.inf if any(map(math.isnan, pairs)) else max(pairs)


def distance(mine: list[float], theirs: list[float]) -> str:
    differing = sum(a != b for a, b in zip(mine, theirs, strict=False))
    return f"{differing} of {len(theirs)} losses differ, by at most {relative(mine, theirs):.1e}"


def table(runs: list[Run]) -> list[str]:
    """One line per run. Training counts from init_process_group to the trained model; comm. as common.py says."""
    head = [
        "job",
        "ranks",
        "hosts",
        "backend",
        "first loss",
        "last loss",
        "reached",
        "training s",
        "whole run s",
        "comm. ms/step",
        "others' cores",
    ]
    rows = [head]
    for run in runs:
        row = [run.job, str(run.ranks), str(run.hosts), run.backend]
        if run.values is None:
            rows.append([*row, "-", "-", run.problem or "-", "-", f"{run.seconds:.1f}", "-", f"{run.others:.2f}"])
            continue
        values, facts = run.values, JOBS[run.job]
        spent = values["communication_ms_per_step"]
        reached = f"{facts.reaches.replace('_', ' ')} {values[facts.reaches]:.4f}"
        row += [f"{values['losses'][0]:.5f}", f"{values['losses'][-1]:.5f}", reached, f"{values['seconds']:.1f}"]
        row += [f"{run.seconds:.1f}", "not reported" if spent is None else f"{spent:.2f}", f"{run.others:.2f}"]
        rows.append(row)
    lines = columns(rows)
    note = [
        "comm. ms/step: time per step in which rank 0 had a collective between issue and completion (torch.profiler's",
        "ranges, over 5 steps after training); it includes waiting for other ranks and what overlaps with computing.",
        "others' cores: how many cores everything else on this machine kept busy meanwhile. The runs come one after",
        "the other: times of two can be compared only where both had the machine for themselves.",
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:], *note]


POLICY = re.compile(
    r"policy: (?P<call>\w+) (?P<size>[\d.]+ \w+) x (?P<ranks>\d+) ranks? -> "
    r"(?P<choice>[^\[]+?)\s*(?:\[(?P<rule>[^\]]*)\]|$)"
)
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def schedules(runs: list[Run]) -> list[str]:
    """Which schedule carried which sizes: the policy lines of RINGCOMM_DEBUG=INFO over all runs, by rule."""
    seen: dict[tuple[int, str, str, str], set[float]] = {}
    for run in runs:
        for match in filter(None, map(POLICY.search, run.log.splitlines())):
            number, _, unit = match["size"].partition(" ")
            key = (int(match["ranks"]), match["call"], match["choice"], match["rule"] or "")
            seen.setdefault(key, set()).add(float(number) * UNITS.get(unit, 1))
    if not seen:
        return ["Schedules: no run logged a policy line"] if any(run.backend == "ringcomm" for run in runs) else []
    rows: list[tuple[str, ...]] = [("ranks", "collective", "schedule", "rule", "sizes")]
    for (ranks, call, choice, rule), sizes in sorted(seen.items(), key=lambda item: (item[0][:2], min(item[1]))):
        rows.append((str(ranks), call, choice, rule, ", ".join(readable(size) for size in sorted(sizes))))
    return ["Schedules that ran (RINGCOMM_DEBUG=INFO)", *(f"  {line}" for line in columns(rows))]


def readable(size: float) -> str:
    """Bytes in the largest unit that leaves a number of at least 1."""
    unit = max((unit for unit in UNITS if size >= UNITS[unit]), key=UNITS.__getitem__, default="B")
    return f"{size / UNITS[unit]:.4g} {unit}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
