"""Runs `python -m ringcomm bench` over the table of docs/performance.md and writes the result between its markers.

Every figure is the median over runs of the bench's own medians. A run whose two probes differ by more than 20 % is
thrown away (the machine changed under it) and repeated, at most as often as there are runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
REGISTERED = "all_reduce,all_gather,reduce_scatter"
MOVES = "reduce_scatter,all_gather,all_to_all,broadcast,sendrecv"


@dataclass(frozen=True)
class Sweep:
    """One call of the bench."""

    title: str
    ranks: int
    arguments: tuple[str, ...]


SWEEPS = [
    Sweep("all_reduce, 2 ranks", 2, ("--ops", "all_reduce", "--sizes", "8,1KiB,64KiB,1MiB,16MiB,128MiB")),
    Sweep("other operations, 2 ranks", 2, ("--ops", MOVES, "--sizes", "8,64KiB,1MiB,16MiB")),
    Sweep("bfloat16 all_reduce, 2 ranks", 2, ("--ops", "all_reduce", "--sizes", "1MiB,16MiB", "--dtypes", "bfloat16")),
    Sweep(
        "8 asynchronous all_reduces waited by futures, 2 ranks",
        2,
        ("--ops", "all_reduce", "--sizes", "32,16MiB", "--async"),
    ),
    Sweep("registered memory, 2 ranks", 2, ("--registered", "--ops", REGISTERED, "--sizes", "64KiB,1MiB,16MiB,128MiB")),
    Sweep("registered memory, 4 ranks", 4, ("--registered", "--ops", REGISTERED, "--sizes", "1MiB,16MiB")),
    Sweep("4 ranks", 4, ("--ops", f"all_reduce,{MOVES}", "--sizes", "8,64KiB,1MiB,16MiB")),
    Sweep("8 ranks", 8, ("--ops", f"all_reduce,{MOVES}", "--sizes", "8,64KiB,1MiB,16MiB")),
]


def bench(sweep: Sweep, extra: list[str]) -> dict[str, Any]:
    """One run's JSON. Raises CalledProcessError when the bench fails, wrong values included."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable,
            "-m",
            "ringcomm",
            "bench",
            "--ranks",
            str(sweep.ranks),
            "--place",
            "in",
            "--compare",
            "gloo",
        ]
        command += ["--probe", "--quiet", "--json", file.name, *sweep.arguments, *extra]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())


def steady(probes: list[float]) -> bool:
    return max(probes) <= 1.2 * min(probes)


def measure(sweep: Sweep, runs: int, extra: list[str]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for _ in range(2 * runs):
        result = bench(sweep, extra)
        print(f"{sweep.title}: probes {result['probe_ms']}", flush=True)
        # With more ranks than cores the probe measures the scheduler, not the machine.
        if steady(result["probe_ms"]) or sweep.ranks > (os.cpu_count() or 1):
            kept.append(result)
        if len(kept) == runs:
            break
    return kept


def table(results: list[dict[str, Any]]) -> list[str]:
    registered = any("registered" in row["us"] for row in results[0]["rows"])
    timed = ["ringcomm", *(["registered"] if registered else []), "gloo", "memcpy"]
    titles = ["operation", "bytes", *(f"{name} us" for name in timed), "gloo / ringcomm", "ringcomm / memcpy"]
    titles += [*(["ringcomm / registered"] if registered else []), "schedule"]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for rows in zip(*(result["rows"] for result in results), strict=False):
        row = rows[0]
        mid = {name: statistics.median(r["us"][name] for r in rows) for name in timed if name in row["us"]}

        def ratio(a: str, b: str, mid: dict[str, float] = mid) -> str:
            return f"{mid[a] / mid[b]:.2f}" if a in mid and b in mid else "-"

        cells = [row["op"], str(row["bytes"]), *(f"{mid[name]:.1f}" if name in mid else "-" for name in timed)]
        cells += [ratio("gloo", "ringcomm"), ratio("ringcomm", "memcpy") if row["bytes"] >= 1 << 20 else "-"]
        cells += [*([ratio("ringcomm", "registered")] if registered else []), row.get("schedule") or "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def cpu() -> str:
    text = Path("/proc/cpuinfo").read_text()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each sweep (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to try this script, not to quote")
    args = parser.parse_args()
    extra = ["--rounds", "2", "--iters", "5"] if args.quick else []
    lines = [
        f"{cpu()}, {os.cpu_count()} cores, Linux {platform.release()}, {time.strftime('%Y-%m-%d %H:%M %Z')}, "
        f"load at the start {os.getloadavg()[0]:.2f};",
        f"`scripts/performance --runs {args.runs}{' --quick' if args.quick else ''}`; float32 unless said.",
        "",
    ]
    for sweep in SWEEPS:
        results = measure(sweep, args.runs, extra)
        if not results:
            lines += [f"### {sweep.title}", "", "No run had two equal probes: not measured.", ""]
            continue
        probes = ", ".join(f"{statistics.mean(result['probe_ms']):.1f}" for result in results)
        lines += [
            f"### {sweep.title}",
            "",
            f"Probe (copy of 128 MiB on all ranks at once), ms per run: {probes}.",
            "",
            *table(results),
            "",
        ]
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + "\n".join(lines) + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
