"""`scripts/performance --net`: all_reduce and others between hosts of the net lab under a limit on what each may send.

Contenders take turns in every round, and every figure is the median over rounds of the slowest rank's time per call.
Tables go between their markers in docs/performance.md (a link beside a plain TCP stream) and docs/hierarchical.md
(schedules by size).

rate of a call = bytes that a rank has to send / time. An all_reduce of S bytes on n ranks: 2 (n - 1)/n S; at 2 ranks S,
while the same comes the other way (full duplex). Frames, TCP and IP are not in it; `wire` counts what left eth0.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from net_lab import Lab, LabError, end_with_signals
from performance import cpu

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 280.0  # seconds for one sweep
KIB, MIB = 1 << 10, 1 << 20
Rule = dict[str, Any] | None
"""A rule of the policy; None: what the shipped default says (and gloo's own way)."""


def hierarchical(inside: str, across: str) -> Rule:
    return {"schedule": "hierarchical", "inside": inside, "across": across}


@dataclass(frozen=True)
class Sweep:
    """One job: `hosts` of `per_host` ranks, and what takes turns in it."""

    name: str
    title: str
    hosts: int
    per_host: int
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    contenders: dict[str, Rule]
    stream: bool = False
    slice: float = 0.15
    """Seconds of calls per contender and round."""
    rounds: int = 5


LADDER = (8, 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
ALL_REDUCE: dict[str, Rule] = {
    "flat ring": {"schedule": "ring"},
    "one_shot, one_shot": hierarchical("one_shot", "one_shot"),
    "one_shot, doubling": hierarchical("one_shot", "doubling"),
    "two_shot, doubling": hierarchical("two_shot", "doubling"),
    "two_shot, two_shot": hierarchical("two_shot", "two_shot"),
    "two_shot, ring": hierarchical("two_shot", "ring"),
    "gloo": None,
}
MOVES: dict[str, Rule] = {"flat one_shot": {"schedule": "one_shot"}, "default": None, "gloo": None}
SWEEPS = [
    Sweep(
        "link", "all_reduce beside a TCP stream, 2 hosts of 1 rank", 2, 1, ("all_reduce",),
        (1 * MIB, 16 * MIB, 64 * MIB),
        {"ringcomm": None, "flat ring": {"schedule": "ring"}, "gloo": None}, stream=True, slice=0.6, rounds=3,
    ),
    Sweep("2x4", "all_reduce, 2 hosts of 4 ranks", 2, 4, ("all_reduce",), LADDER, ALL_REDUCE, rounds=3),
    Sweep("4x2", "all_reduce, 4 hosts of 2 ranks", 4, 2, ("all_reduce",), LADDER[:-1], ALL_REDUCE, rounds=3),
    Sweep(
        "moves", "other operations, 2 hosts of 4 ranks", 2, 4, ("broadcast", "all_gather", "reduce_scatter"),
        (1 * KIB, 64 * KIB, 1 * MIB, 16 * MIB), MOVES, rounds=3,
    ),
]  # fmt: skip


def run(sweep: Sweep, rate: str, rounds: int | None) -> list[dict[str, Any]]:
    """The rows of the sweep. Raises RuntimeError with what a rank said if one fails."""
    with tempfile.TemporaryDirectory() as folder, Lab(sweep.hosts, rate) as lab:
        job, out = Path(folder) / "job.json", Path(folder) / "rows.json"
        more = {"out": str(out), "bytes_per_second": bits(rate) / 8, **({"rounds": rounds} if rounds else {})}
        job.write_text(json.dumps({**asdict(sweep), **more}))
        names = {"MASTER_ADDR": lab.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
        names |= {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(sweep.hosts * sweep.per_host)}
        names |= {"LOCAL_WORLD_SIZE": str(sweep.per_host), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        command = [sys.executable, str(ROOT / "scripts" / "performance_net_rank.py"), str(job)]
        ranks = []
        for rank in range(sweep.hosts * sweep.per_host):
            environment = {**os.environ, **names, "RANK": str(rank), "LOCAL_RANK": str(rank % sweep.per_host)}
            with (Path(folder) / f"log-{rank}").open("w") as log:
                ranks.append(lab.start(rank // sweep.per_host, command, env=environment, stderr=log))
        deadline = time.monotonic() + LIMIT
        while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
            if any(process.poll() for process in ranks):
                break
            time.sleep(0.2)
        failed = [rank for rank, process in enumerate(ranks) if process.poll()]
        if failed:
            said = (Path(folder) / f"log-{failed[0]}").read_text()[-2000:]
            raise RuntimeError(f"{sweep.name}: rank {failed[0]} failed\n{said}")
        if any(process.poll() is None for process in ranks):
            raise RuntimeError(f"{sweep.name}: not done after {LIMIT:.0f} s")
        rows: list[dict[str, Any]] = json.loads(out.read_text())
        return rows


def bits(rate: str) -> float:
    """Of tc's `1gbit`, `80mbit`."""
    units = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
    unit = next((unit for unit in units if rate.endswith(unit)), None)
    if unit is None:
        raise SystemExit(f"--rate is {rate}; allowed are numbers with gbit, mbit or kbit")
    return float(rate[: -len(unit)]) * units[unit]


def middle(values: list[float]) -> float:
    return statistics.median(values)


def size(nbytes: int) -> str:
    for unit, factor in (("MiB", MIB), ("KiB", KIB)):
        if nbytes >= factor:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


def link_table(rows: list[dict[str, Any]]) -> list[str]:
    """Rates in MB/s (10^6) of payload, and of what left eth0 behind it; shares are of the one-way stream."""
    lines = [
        "| bytes | | us | payload MB/s | wire MB/s | payload, of the stream | wire, of the stream |",
        "| --- " * 7 + "|",
    ]
    for row in rows:
        took = {name: middle(values) for name, values in row["seconds"].items()}
        wire = {name: middle(values) for name, values in row["wire"].items()}
        most = row["bytes"] / took["stream"], wire["stream"] / took["stream"]
        for name in ("stream", "stream both ways", *(n for n in took if not n.startswith("stream"))):
            rates = row["bytes"] / took[name], wire[name] / took[name]
            cells = [size(row["bytes"]), name, f"{1e6 * took[name]:.0f}", *(f"{r / 1e6:.1f}" for r in rates)]
            cells += [f"{100 * r / m:.1f} %" for r, m in zip(rates, most, strict=True)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def ladder_table(rows: list[dict[str, Any]]) -> list[str]:
    """Microseconds by contender."""
    names = list(rows[0]["seconds"])
    ops = len({row["op"] for row in rows}) > 1
    ours = [name for name in names if name != "gloo"]
    titles = [*(["operation"] if ops else []), "bytes", *names, f"{names[0]} / fastest", "fastest"]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for row in rows:
        took = {name: 1e6 * middle(values) for name, values in row["seconds"].items()}
        best = min(ours, key=took.__getitem__)
        cells = [*([row["op"]] if ops else []), size(row["bytes"]), *(f"{took[name]:.0f}" for name in names)]
        lines.append(f"| {' | '.join([*cells, f'{took[names[0]] / took[best]:.2f}', best])} |")
    return lines


def write(page: Path, name: str, lines: list[str]) -> None:
    """Puts the lines between the page's markers of that name."""
    begin, end = f"<!-- measured {name}: begin -->", f"<!-- measured {name}: end -->"
    head, rest = page.read_text().split(begin)
    page.write_text(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rate", default="1gbit", help="what each host may send (default: %(default)s)")
    parser.add_argument("--only", default=",".join(sweep.name for sweep in SWEEPS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, help="instead of each sweep's own")
    parser.add_argument("--dry", action="store_true", help="print the tables and write no page")
    args = parser.parse_args()
    end_with_signals()
    for name in args.only.split(","):
        sweep = next((sweep for sweep in SWEEPS if sweep.name == name), None)
        if sweep is None:
            parser.error(f"--only: there is no {name!r}; there are {', '.join(sweep.name for sweep in SWEEPS)}")
        load = os.getloadavg()[0]
        try:
            rows = run(sweep, args.rate, args.rounds)
        except LabError as error:
            print(f"performance: {error}", file=sys.stderr)
            return 77
        told = f"{cpu()}, {os.cpu_count()} cores, Linux {platform.release()}, {time.strftime('%Y-%m-%d %H:%M %Z')}, "
        told += f"load at the start {load:.2f};"
        command = f"`scripts/performance --net --only {name} --rate {args.rate}`; float32; median of "
        command += f"{args.rounds or sweep.rounds} rounds, microseconds."
        lines = [f"**{sweep.title}, {args.rate} out of each host.** {told}", command, ""]
        lines += link_table(rows) if sweep.stream else ladder_table(rows)
        print("\n".join(lines), flush=True)
        if not args.dry:
            page = ROOT / "docs" / ("performance.md" if sweep.stream else "hierarchical.md")
            write(page, f"net {name}", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
