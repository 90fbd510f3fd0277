"""`python -m ringcomm bench`: times collectives, checks every value, and can put another backend beside.

Starts its own ranks (`--ranks 2`), or is one rank of a job whose launcher set RANK and WORLD_SIZE (torchrun). Formulas
of algbw and busbw: ringcomm/tools/bench_cases.py. Status: 0 all right, 1 wrong values, 2 bad arguments, 3 a case could
not run, 4 a rank died.

    python -m ringcomm bench --ranks 2 --ops all_reduce,all_gather --sizes 8,64KiB,16MiB --compare gloo
    torchrun --nproc-per-node 4 -m ringcomm bench -b 1KiB -e 64MiB -f 4 --dtypes float32,bfloat16 --json out.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from ringcomm.config.values import parse_bytes, show_bytes
from ringcomm.tools.launched import wrong_variable

DEFAULT_SIZES = "8,1KiB,64KiB,1MiB,16MiB"


def nbytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; allowed are 8, 64KiB, 64kB, 1MiB, ...") from None


def at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed is a whole number from {low}")
        return int(text)

    return parse


def one_of(allowed: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        wrong = [name for name in names if name not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not known; allowed are {', '.join(allowed)}")
        return names

    return parse


def arguments(argv: list[str]) -> argparse.Namespace:
    from ringcomm.tools.bench_cases import EXACT, OPERATIONS, REDUCTIONS

    p = argparse.ArgumentParser(
        "python -m ringcomm bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--ops", type=one_of(list(OPERATIONS)), default=["all_reduce"], help="comma-separated")
    p.add_argument("--sizes", help=f"whole messages, comma-separated (default {DEFAULT_SIZES})")
    p.add_argument("-b", "--begin", type=nbytes, help="smallest size, instead of --sizes")
    p.add_argument("-e", "--end", type=nbytes, help="largest size")
    p.add_argument("-f", "--factor", type=at_least(2), help="from one size to the next (default 2)")
    p.add_argument("--dtypes", type=one_of(list(EXACT)), default=["float32"], help="comma-separated")
    p.add_argument("--redop", type=one_of(list(REDUCTIONS)), default=["sum"], help="comma-separated")
    p.add_argument("--root", type=at_least(0), default=0)
    p.add_argument("--ranks", type=at_least(1), help="ranks to start (default 2; under a launcher its own number)")
    p.add_argument("--place", choices=("out", "in", "both"), default="out", help="where an operation has both")
    p.add_argument(
        "--async", dest="parts", type=at_least(1), nargs="?", const=8, default=0, metavar="K",
        help="split each message into K asynchronous calls waited by futures, as DDP does (K: 8)",
    )  # fmt: skip
    p.add_argument("--iters", type=at_least(1), default=0, help="calls per round (default: what fits 0.1 s)")
    p.add_argument("--warmup", type=at_least(0), default=2, help="calls before the first round")
    p.add_argument("--rounds", type=at_least(1), default=5)
    p.add_argument("--no-check", action="store_true", help="do not check values")
    p.add_argument("--backend", default="ringcomm")
    p.add_argument("--compare", metavar="BACKEND", help="time this backend in the same rounds, with a ratio")
    p.add_argument(
        "--registered", action="store_true",
        help="also on registered memory (ringcomm.empty), in the same rounds, with a ratio; inputs are written anew "
        "before each call",
    )  # fmt: skip
    p.add_argument("--config", help="configuration of ringcomm: a path or a shipped name")
    p.add_argument("--probe", action="store_true", help="print the speed of a copy on all ranks before and after")
    p.add_argument("--timeout", type=at_least(1), default=120, help="of the groups, seconds")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--quiet", action="store_true", help="no progress on standard error")
    a = p.parse_args(argv)
    _check(p, a)
    return a


def _check(p: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """Arguments that exclude each other or the launcher; puts the sizes and the number of ranks in."""
    if a.sizes is not None and (a.begin, a.end, a.factor) != (None, None, None):
        p.error(f"--sizes {a.sizes} excludes -b, -e and -f; give one or the other")
    if a.begin is None and (a.end is not None or a.factor is not None):
        p.error("-e and -f need -b, the smallest size")
    try:
        a.sizes = _sizes(a) if a.begin is not None else [nbytes(s) for s in (a.sizes or DEFAULT_SIZES).split(",")]
    except (argparse.ArgumentTypeError, ValueError) as error:
        p.error(f"argument --sizes: {error}")
    world = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    if wrong := wrong_variable():
        p.error(wrong)
    if world is not None and a.ranks not in (None, int(world)):
        p.error(f"--ranks is {a.ranks}, but the launcher's WORLD_SIZE is {world}; leave --ranks out")
    a.launched = world is not None
    a.ranks = int(world) if world is not None else a.ranks or 2
    if a.root >= a.ranks:
        p.error(f"--root is {a.root}; allowed are 0 to {a.ranks - 1}")
    if "sendrecv" in a.ops and a.ranks < 2:
        p.error(f"--ops sendrecv needs at least 2 ranks, --ranks is {a.ranks}")
    if "sendrecv" in a.ops and a.parts:
        p.error("--ops sendrecv has no asynchronous form here; leave --async out")
    if a.registered and a.backend != "ringcomm":
        p.error(f"--registered is for ringcomm; --backend is {a.backend}")
    if a.compare == a.backend:
        p.error(f"--compare is {a.compare}, the backend itself")
    _check_named(p, a)


def _check_named(p: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """What the ranks would find missing only after their start, and the file of the results only at the end."""
    import torch.distributed as dist

    from ringcomm import ConfigError, config

    for option, name in (("--backend", a.backend), ("--compare", a.compare)):
        if name and ":" not in name and not dist.is_backend_available(name):
            known = [b for b in dist.Backend.backend_list if dist.is_backend_available(b)]
            p.error(f"{option} is {name}; available are {', '.join(known)}")
    if a.config:
        try:
            config.load(a.config, source="--config")
        except ConfigError as error:
            p.error(str(error))
    if a.json and os.environ.get("RANK", "0") == "0":  # rank 0 writes it; the others may be on another machine
        path = Path(a.json).absolute()
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            p.error(f"--json is {a.json}, which cannot be written")


def _sizes(a: argparse.Namespace) -> list[int]:
    last = a.begin if a.end is None else a.end
    if not 0 < a.begin <= last:
        raise ValueError(f"-b is {a.begin} and -e is {last}; allowed are 0 < b <= e")
    sizes = [a.begin]
    while sizes[-1] * (a.factor or 2) <= last:
        sizes.append(sizes[-1] * (a.factor or 2))
    return sizes


def plan(a: argparse.Namespace) -> Any:
    """The cases of these arguments, in the order they run."""
    from ringcomm.tools.bench_cases import OPERATIONS, Case
    from ringcomm.tools.bench_run import Plan

    cases = []
    for op in a.ops:
        kind = OPERATIONS[op]
        wanted = {"both": ("out", "in")}.get(a.place, (a.place,))
        places = [place for place in kind.places if place in wanted] or kind.places[:1]
        for dtype in a.dtypes if op != "barrier" else a.dtypes[:1]:
            for redop in a.redop if kind.reduces else [""]:
                for size in a.sizes if op != "barrier" else [0]:
                    cases += [Case(op, size, dtype, redop, place == "in", a.parts) for place in places]
    backends = [a.backend, *([a.compare] if a.compare else [])]
    return Plan(
        cases, backends, a.root, a.iters, a.warmup, a.rounds,
        probe=a.probe, check=not a.no_check, timeout=a.timeout, quiet=a.quiet, registered=a.registered,
    )  # fmt: skip


def header(a: argparse.Namespace) -> str:
    columns = f"{'op':<15}{'bytes':>11} {'count':>10} {'type':>13} {'redop':>8} {'place':>5} {'time us':>10}"
    columns += f" {'algbw':>7} {'busbw':>7} {'#wrong':>6} {'schedule':>9} {'memcpy us':>10}"
    for name in _beside(a):
        columns += f" {name + ' us':>13} {'#wrong':>6} {'ratio':>7}"
    return columns


def _beside(a: argparse.Namespace) -> list[str]:
    """What is timed beside the backend."""
    return [*(["registered"] if a.registered else []), *([a.compare] if a.compare else [])]


def line(a: argparse.Namespace, row: dict[str, Any]) -> str:
    """One row of the table; bandwidths in GB/s (10^9)."""
    text = f"{row['op']:<15}{row['bytes']:>11} {row['count']:>10} {row['dtype']:>13} {row['redop'] or '-':>8}"
    text += f" {'in' if row['in_place'] else 'out':>5} {_us(row, a.backend)}"
    text += f" {row['algbw'].get(a.backend, 0):>7.2f} {row['busbw'].get(a.backend, 0):>7.2f}"
    text += f" {row['wrong'][a.backend]:>6} {row['schedule'] or '-':>9} {_us(row, 'memcpy')}"
    for name in _beside(a):
        both = a.backend in row["us"] and name in row["us"]
        ratio = f"{row['us'][name] / row['us'][a.backend]:.2f}x" if both else "-"
        text += f" {_us(row, name):>13} {row['wrong'][name]:>6} {ratio:>7}"
    return text + "".join(f"\n  {backend} could not run it: {error}" for backend, error in row["errors"].items())


def _us(row: dict[str, Any], name: str) -> str:
    return f"{row['us'][name]:>10.2f}" if name in row["us"] else f"{'-':>10}"


def probe_text(milliseconds: float, when: str) -> str:
    from ringcomm.tools.bench_run import PROBE_BYTES, mood

    what = f"copy of {show_bytes(PROBE_BYTES)} on all ranks at once"
    return f"# probe {when}: {what} {milliseconds:.2f} ms, looks {mood(milliseconds)}"


def rank_main(a: argparse.Namespace) -> int:
    """One rank, in an initialised gloo default group; rank 0 prints and writes the JSON. Returns the same on all."""
    import torch
    import torch.distributed as dist

    from ringcomm.tools import bench_run

    torch.set_num_threads(1)
    mine = dist.get_rank() == 0
    begun = False

    def row_done(row: dict[str, Any], result: bench_run.Result) -> None:
        nonlocal begun
        if mine and not begun:
            setup = ", ".join(f"{name} {ms:.1f} ms" for name, ms in result.setup_ms.items())
            print(f"# {result.ranks} ranks, torch {result.torch}, {result.date}; group made in: {setup}")
            print(*[probe_text(ms, "before") for ms in result.probe_ms], header(a), sep="\n", flush=True)
        begun = True
        if mine:
            print(line(a, row), flush=True)

    result = bench_run.run(plan(a), row_done)
    if mine:
        if a.probe:
            print(probe_text(result.probe_ms[-1], "after"))
        wrong = sum(sum(row["wrong"].values()) for row in result.rows)
        found = "values not checked" if a.no_check else f"{wrong} wrong values"
        print(f"# status {result.status}: {found}", flush=True)
        if a.json:
            settings = {k: v for k, v in vars(a).items() if k != "launched"}
            Path(a.json).write_text(json.dumps({**result.json(), "arguments": settings}, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    return result.status


def spawned(rank: int, a: argparse.Namespace, port: int, status_file: str) -> None:
    """A rank this program started."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, None, False)
    wait = timedelta(seconds=a.timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=a.ranks, timeout=wait)
    status = rank_main(a)
    if rank == 0:
        Path(status_file).write_text(str(status))


def start_ranks(a: argparse.Namespace) -> int:
    """Starts the ranks as processes and waits for them. The port belongs to a store kept here: nobody can take it."""
    import torch.distributed as dist
    import torch.multiprocessing as mp

    store = dist.TCPStore("127.0.0.1", 0, None, True)
    with tempfile.TemporaryDirectory() as folder:
        status_file = Path(folder) / "status"
        try:
            mp.spawn(spawned, args=(a, store.port, str(status_file)), nprocs=a.ranks)
        except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
            print(f"ringcomm bench: {error}", file=sys.stderr)
            return 4
        return int(status_file.read_text())


def main(argv: list[str]) -> int:
    a = arguments(argv)
    if a.config:
        os.environ["RINGCOMM_CONFIG"] = a.config
    if not a.launched:
        return start_ranks(a)
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=a.timeout))
    return rank_main(a)
