"""Runs rounds of scripts/soak_rank.py on a pool of ranks until the time is up; judges values and growth.

scripts/soak.py [--minutes 20] [--ranks 6] [--seed N] [--first-round N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "collectives")]

from ranks import RankError, RankPool  # noqa: E402
from soak_rank import TIMEOUT, Report, soak_round, touch_everything  # noqa: E402

# What may lie between the medians of the second and the last quarter of a run.
TOLERANCE = {"descriptors": 2, "threads": 2, "mappings": 2, "segment KiB": 1024, "private KiB": 8 * 1024}
PER_GROUP = 4  # KiB of private memory that torch may keep of each group made between the two
# The C library's allocator by itself keeps what threads have freed, tens of MiB for each of its arenas.
FRUGAL = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
FEWEST = 8  # rounds; below that nothing is said about growth


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="default: %(default)g")
    parser.add_argument("--ranks", type=int, default=6, help="more than there are cores; default: %(default)s")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--first-round", type=int, default=0, help="number of the first round; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=None, help="end after so many, whatever the time")
    parser.add_argument("--json", type=Path, default=None, help="also write the summary to this file")
    args = parser.parse_args()
    if args.ranks < 2:
        parser.error(f"--ranks is {args.ranks}; groups have 2 ranks or more")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(10**9)
    return args


class Soak:
    """What has been seen so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.monotonic()
        self.rounds = 0
        self.groups = 0
        self.done: Counter[str] = Counter()
        self.usages: list[list[dict[str, int]]] = []  # [round][rank]
        self.groups_by_round: list[int] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        with RankPool(self.args.ranks, backend="ringcomm", env=dict(FRUGAL), timeout=TIMEOUT) as pool:
            pool.run(touch_everything, timeout=2 * TIMEOUT.total_seconds())
            while not self.wrong and not self.over():
                number = self.args.first_round + self.rounds
                try:
                    reports = pool.run(soak_round, self.args.seed, number, timeout=2 * TIMEOUT.total_seconds())
                except RankError as error:
                    self.wrong = [str(error)]
                else:
                    self.add(reports)
                if self.wrong:
                    self.wrong.append(
                        f"repeat with: scripts/soak --seed {self.args.seed} --ranks {self.args.ranks} "
                        f"--first-round {number} --rounds 1"
                    )
                self.rounds += 1

    def over(self) -> bool:
        late = time.monotonic() - self.began > 60 * self.args.minutes
        return late or (self.args.rounds is not None and self.rounds >= self.args.rounds)

    def add(self, reports: list[Report]) -> None:
        for report in reports:
            self.wrong += report.wrong
            self.done += report.done
            self.groups += report.groups
        self.groups_by_round.append(max(report.groups for report in reports))
        self.usages.append([report.usage for report in reports])

    def growth(self) -> dict[str, dict[str, int]]:
        """Per quantity: medians of the second and the last quarter on the rank that grew most, and what is allowed."""
        quarter = len(self.usages) // 4
        if len(self.usages) < FEWEST:
            return {}
        between = sum(self.groups_by_round[quarter:])
        result = {}
        for what, allowed in TOLERANCE.items():
            if what == "private KiB":
                allowed += PER_GROUP * between
            pairs = [
                (self.middle(what, rank, quarter, 2 * quarter), self.middle(what, rank, -quarter, None))
                for rank in range(self.args.ranks)
            ]
            before, after = max(pairs, key=lambda pair: pair[1] - pair[0])
            result[what] = {"before": before, "after": after, "allowed growth": allowed}
        return result

    def middle(self, what: str, rank: int, first: int, last: int | None) -> int:
        return int(median(usages[rank][what] for usages in self.usages[first:last]))

    def summary(self) -> dict[str, Any]:
        growth = self.growth()
        return {
            "seed": self.args.seed,
            "ranks": self.args.ranks,
            "cores": len(os.sched_getaffinity(0)),
            "seconds": round(time.monotonic() - self.began, 1),
            "rounds": self.rounds,
            "groups": self.groups,
            "calls": sum(self.done.values()),
            "calls by kind": dict(sorted(self.done.items())),
            "wrong": self.wrong,
            "growth": growth,
            "grown": [what for what, g in growth.items() if g["after"] - g["before"] > g["allowed growth"]],
        }


def text(summary: dict[str, Any]) -> str:
    s = summary
    lines = [
        f"soak: {s['seconds']:.0f} s, seed {s['seed']}, {s['ranks']} ranks on {s['cores']} cores",
        f"  {s['rounds']} rounds, {s['calls']} checked calls, {s['groups']} groups (both summed over ranks)",
    ]
    for what, g in summary["growth"].items():
        lines.append(f"  {what:<12} {g['before']} -> {g['after']} (may grow by {g['allowed growth']})")
    lines += [f"  GROWN: {what}" for what in summary["grown"]]
    lines += [f"  WRONG: {line}" for line in summary["wrong"]]
    return "\n".join(lines)


def main() -> int:
    args = arguments()
    print(f"soak: seed {args.seed}", flush=True)
    soak = Soak(args)
    soak.run()
    summary = soak.summary()
    print(text(summary))
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if summary["wrong"] or summary["grown"] else 0


if __name__ == "__main__":
    sys.exit(main())
