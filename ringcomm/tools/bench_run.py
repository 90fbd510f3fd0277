"""What one rank of `bench` does: makes the groups, then checks and times one case after the other.

A figure is the median over rounds of the slowest rank's mean time per call; backends and the plain copy take turns in a
round, so that drift of the machine hits all alike. Values are checked before and after the timing.

With registered memory beside it, every rank writes its input anew before each call, and only the call is timed: in a
bare loop each half of a registered message stays in its owner's cache, which no application sees.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import ringcomm
from ringcomm import config, policy
from ringcomm.bootstrap import nodes, process
from ringcomm.config import COLLECTIVES
from ringcomm.tools.bench_cases import OPERATIONS, Case, Operation

REGISTERED = "registered"
PROBE_BYTES = 128 << 20
# The copy of PROBE_BYTES on both ranks at once takes 12.6 ms where both cores share a memory port and 7 ms where they
# do not (measured, two vCPUs of an AMD Zen 5, 2026-11-29). Elsewhere only equal probes before and after mean something.
MOODS_MS = {"near": (11.0, 15.0), "far": (5.5, 8.5)}


@dataclass
class Plan:
    """Everything the ranks of one run must know; picklable."""

    cases: list[Case]
    backends: list[str]
    root: int = 0
    iters: int = 0
    """Calls per round; 0: as many as fit `slice` seconds, at most `max_iters`."""
    warmup: int = 2
    rounds: int = 5
    slice: float = 0.1
    max_iters: int = 2000
    probe: bool = False
    check: bool = True
    timeout: float = 120.0
    quiet: bool = False
    registered: bool = False
    """Also ringcomm on registered memory, as a further column of that name."""


@dataclass
class Result:
    """The JSON of a run, apart from its arguments. Stable keys: see tests/test_bench.py."""

    version: int = 1
    ranks: int = 0
    ringcomm: str = ringcomm.__version__
    torch: str = torch.__version__
    machine: str = field(default_factory=platform.machine)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    setup_ms: dict[str, float] = field(default_factory=dict)
    probe_ms: list[float] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> int:
        """0: all right; 1: wrong values; 3: a case could not run."""
        if any(sum(row["wrong"].values()) for row in self.rows):
            return 1
        return 3 if any(row["errors"] for row in self.rows) else 0

    def json(self) -> dict[str, Any]:
        return asdict(self)


class Ranks:
    """The measured groups, and a gloo group for the bench's own agreement that carries nothing that is measured."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rank, self.size = plan, dist.get_rank(), dist.get_world_size()
        self.control = dist.group.WORLD
        machines: list[Any] = [None] * self.size
        dist.all_gather_object(machines, process.facts()["machine"], self.control)
        self.settings = config.load()
        self.places = nodes.places(self.settings, range(self.size), [{"machine": machine} for machine in machines])
        self.setup_ms: dict[str, float] = {}
        self.groups: dict[str, Any] = {}
        for backend in plan.backends:
            self.barrier()
            begin = time.perf_counter()
            self.groups[backend] = dist.new_group(backend=backend, timeout=timedelta(seconds=plan.timeout))
            self.setup_ms[backend] = 1e3 * self.slowest([time.perf_counter() - begin])[0]

    def barrier(self) -> None:
        dist.barrier(self.control)

    def slowest(self, values: list[float]) -> list[float]:
        """The largest of all ranks, element by element."""
        x = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(x, dist.ReduceOp.MAX, self.control)
        return x.tolist()

    def total(self, value: int) -> int:
        x = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(x, dist.ReduceOp.SUM, self.control)
        return int(x.item())

    def tell(self, text: str) -> None:
        if self.rank == 0 and not self.plan.quiet:
            print(text, file=sys.stderr, flush=True)


def run(plan: Plan, row_done: Callable[[dict[str, Any], Result], None]) -> Result:
    """Runs the plan on this rank of an initialised gloo default group; row_done is called on all ranks per row."""
    ranks = Ranks(plan)
    result = Result(ranks=ranks.size, setup_ms=ranks.setup_ms)
    if plan.probe:
        _probe(ranks)  # the first touches fresh memory
        result.probe_ms.append(_probe(ranks))
    for index, case in enumerate(plan.cases):
        ranks.tell(f"[{index + 1}/{len(plan.cases)}] {case.op} {case.nbytes} B {case.dtype} {case.redop}")
        result.rows.append(_row(ranks, case))
        row_done(result.rows[-1], result)
    if plan.probe:
        result.probe_ms.append(_probe(ranks))
    return result


def mood(milliseconds: float) -> str:
    """How the probe looks on the machine the limits were measured on."""
    found = [name for name, (low, high) in MOODS_MS.items() if low <= milliseconds <= high]
    return found[0] if found else "like neither near nor far (busy, or another machine)"


def _probe(ranks: Ranks) -> float:
    source, target = torch.ones(PROBE_BYTES, dtype=torch.uint8), torch.zeros(PROBE_BYTES, dtype=torch.uint8)
    ranks.barrier()
    begin = time.perf_counter()
    for _ in range(4):
        target.copy_(source)
    return ranks.slowest([(time.perf_counter() - begin) / 4 * 1e3])[0]


Contenders = dict[str, tuple[list[Operation], Any]]
"""By name of the column: the calls and the group they go to."""


def _contenders(ranks: Ranks, case: Case, calls: list[Operation]) -> Contenders:
    found: Contenders = {backend: (calls, group) for backend, group in ranks.groups.items()}
    if ranks.plan.registered:
        kind, root = OPERATIONS[case.op], ranks.plan.root
        theirs = [kind(case, ranks.rank, ranks.size, root, registered=True) for _ in calls]
        found[REGISTERED] = (theirs, ranks.groups["ringcomm"])
    return found


def _row(ranks: Ranks, case: Case) -> dict[str, Any]:
    calls = [OPERATIONS[case.op](case, ranks.rank, ranks.size, ranks.plan.root) for _ in range(max(1, case.parts))]
    nbytes = sum(c.nbytes for c in calls)
    row: dict[str, Any] = {
        "op": case.op,
        "bytes": nbytes,
        "count": sum(c.count for c in calls),
        "dtype": case.dtype,
        "redop": case.redop,
        "in_place": case.in_place,
        "async_parts": case.parts,
        "schedule": _schedule(ranks, case.op, calls[0].nbytes),
        **{name: {} for name in ("us", "min_us", "algbw", "busbw", "wrong", "errors")},
    }
    usable = {}
    for name, (theirs, group) in _contenders(ranks, case, calls).items():
        error, wrong = _checked(ranks, theirs, group, case)
        row["wrong"][name] = wrong
        if error:
            row["errors"][name] = error
        else:
            usable[name] = (theirs, group)
    times = _times(ranks, usable, case, nbytes)
    for name, (theirs, group) in usable.items():
        row["wrong"][name] += _checked(ranks, theirs, group, case)[1]
    for name, rounds in times.items():
        row["us"][name], row["min_us"][name] = statistics.median(rounds) * 1e6, min(rounds) * 1e6
        row["algbw"][name] = nbytes / statistics.median(rounds) / 1e9
        factor = OPERATIONS[case.op].factor(ranks.size) if name in usable else 1.0
        row["busbw"][name] = row["algbw"][name] * factor
    return row


def _schedule(ranks: Ranks, op: str, nbytes: int) -> str | None:
    """Which schedule ringcomm runs for one call, if it is measured and the operation has one."""
    if "ringcomm" not in ranks.groups or op not in COLLECTIVES:
        return None
    table = policy.table(ranks.settings, ranks.size, ranks.places)
    return policy.select(table, op, nbytes).schedule


def _call(calls: list[Operation], group: Any, parts: int) -> None:
    if not parts:
        calls[0].call(group, False)
        return
    for waitable in [_waitable(c.call(group, True)) for c in calls]:
        waitable.wait()


def _waitable(work: Any) -> Any:
    """The work's future, or the work where it has none (gloo's reduce_scatter)."""
    try:
        return work.get_future()
    except RuntimeError:
        return work


def _checked(ranks: Ranks, calls: list[Operation], group: Any, case: Case) -> tuple[str, int]:
    """(text of the error or '', wrong elements on all ranks) of one call on fresh inputs."""
    error, wrong = "", 0
    for c in calls:
        c.reset()
    ranks.barrier()
    try:
        _call(calls, group, case.parts)
        wrong = sum(c.wrong() for c in calls) if ranks.plan.check else 0
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as caught:
        error = f"{type(caught).__name__}: {str(caught).splitlines()[0] if str(caught) else ''}"
    failed = ranks.total(bool(error))
    if failed and not error:
        error = f"failed on {failed} other rank{'s' * (failed > 1)}"
    return error, ranks.total(wrong)


def _times(ranks: Ranks, usable: Contenders, case: Case, nbytes: int) -> dict[str, list[float]]:
    """Seconds per call and round of each contender, slowest rank; and of a copy of the same bytes as 'memcpy'."""
    bodies: dict[str, Callable[[], object]] = {
        name: partial(_call, calls, group, case.parts) for name, (calls, group) in usable.items()
    }
    if nbytes:
        source, target = torch.ones(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
        bodies["memcpy"] = lambda: target.copy_(source)
    times: dict[str, list[float]] = {name: [] for name in bodies}
    iters = {name: _iterations(ranks, body) for name, body in bodies.items()}
    for _ in range(ranks.plan.rounds):
        for name, body in bodies.items():
            ranks.barrier()
            before = usable[name][0] if ranks.plan.registered and name in usable else []
            times[name].append(_seconds(body, before, iters[name]) / iters[name])
    return {name: ranks.slowest(mine) for name, mine in times.items()}


def _seconds(body: Callable[[], object], before: list[Operation], iters: int) -> float:
    """Of `iters` calls; what is written anew before each of them is not counted."""
    if not before:
        begin = time.perf_counter()
        for _ in range(iters):
            body()
        return time.perf_counter() - begin
    total = 0.0
    for _ in range(iters):
        for operation in before:
            operation.rewrite()
        begin = time.perf_counter()
        body()
        total += time.perf_counter() - begin
    return total


def _iterations(ranks: Ranks, body: Callable[[], object]) -> int:
    for _ in range(ranks.plan.warmup):
        body()
    if ranks.plan.iters:
        return ranks.plan.iters
    ranks.barrier()
    begin = time.perf_counter()
    body()
    seconds = ranks.slowest([time.perf_counter() - begin])[0]
    return max(1, min(ranks.plan.max_iters, int(ranks.plan.slice / max(seconds, 1e-7))))
