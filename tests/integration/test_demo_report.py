"""The demo's verdict: right runs pass, and each way a run can be wrong turns it to failed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from demo_report import Run, report

LINE = (
    "ringcomm INFO [host:1] policy: all_reduce {size} x {ranks} ranks -> {schedule} over shm [default.yaml:7] group 0\n"
)


def run(job: str, backend: str, ranks: int, hosts: int = 1) -> Run:
    values: dict[str, Any] = {
        "backend": backend,
        "losses": [2.0, 1.0, 0.5],
        "digest": "ab" * 32,
        "ranks_agree": True,
        "seconds": 1.0,
        "communication_ms_per_step": None,
        "accuracy": 0.97,
        "held_out_loss": 2.2,
    }
    return Run(job, backend, ranks, values, "", 2.0, None, hosts, 0.25)


def good_runs(most_hosts: int = 1) -> list[Run]:
    return [
        run(job, backend, ranks, hosts)
        for job in ("ddp_digits", "fsdp_chars")
        for ranks in (2, 4)
        for hosts in range(1, most_hosts + 1)
        for backend in ("gloo", "ringcomm")
    ]


def test_right_runs_pass() -> None:
    text, good = report(good_runs(), quick=False)
    assert good
    assert "0 failed" in text


def change(runs: list[Run], job: str, ranks: int, **values: Any) -> None:
    """Changes what the ringcomm run of this job and size reached."""
    (found,) = (r for r in runs if (r.job, r.backend, r.ranks) == (job, "ringcomm", ranks))
    assert found.values is not None
    found.values.update(values)


def lose(runs: list[Run]) -> None:
    runs[-1].values, runs[-1].problem = None, "ended with status 1"


BROKEN: dict[str, Callable[[list[Run]], None]] = {
    "one bit of one loss at 2 ranks": lambda r: change(r, "ddp_digits", 2, losses=[2.0, 1.0, math.nextafter(0.5, 1)]),
    "parameters at 2 ranks": lambda r: change(r, "ddp_digits", 2, digest="cd" * 32),
    "an early loss at 4 ranks": lambda r: change(r, "ddp_digits", 4, losses=[2.0, 1.0001, 0.5]),
    "a missing loss at 4 ranks": lambda r: change(r, "ddp_digits", 4, losses=[2.0, 1.0]),
    "accuracy apart at 4 ranks": lambda r: change(r, "ddp_digits", 4, accuracy=0.985),
    "accuracy below its goal": lambda r: change(r, "ddp_digits", 2, accuracy=0.94),
    "final loss apart": lambda r: change(r, "fsdp_chars", 4, held_out_loss=2.26),
    "final loss above its goal": lambda r: change(r, "fsdp_chars", 2, held_out_loss=2.5),
    "final loss not a number": lambda r: change(r, "fsdp_chars", 2, held_out_loss=math.nan),
    "a loss not a number": lambda r: change(r, "fsdp_chars", 2, losses=[2.0, math.nan, 0.5]),
    "ranks that differ": lambda r: change(r, "fsdp_chars", 4, ranks_agree=False),
    "another backend ran": lambda r: change(r, "fsdp_chars", 4, backend="gloo"),
    "a run that failed": lose,
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_fails(name: str) -> None:
    runs = good_runs()
    BROKEN[name](runs)
    text, good = report(runs, quick=False)
    assert not good
    assert "FAILED" in text


ON_TWO_HOSTS: dict[str, tuple[str, int, dict[str, Any], str]] = {
    "one bit of one loss": ("ddp_digits", 2, {"losses": [2.0, 1.0, math.nextafter(0.5, 1)]}, "bit-equal"),
    "parameters": ("ddp_digits", 2, {"digest": "cd" * 32}, "bit-equal"),
    "an early loss at 4 ranks": ("ddp_digits", 4, {"losses": [2.0, 1.0001, 0.5]}, "within 1e-5"),
    "final loss apart": ("fsdp_chars", 2, {"held_out_loss": 2.26}, "within 2 %"),
}


@pytest.mark.parametrize("name", ON_TWO_HOSTS)
def test_two_hosts_are_compared_with_one_and_with_gloo_on_two(name: str) -> None:
    assert report(good_runs(2), quick=False)[1]
    job, ranks, values, check = ON_TWO_HOSTS[name]
    runs = good_runs(2)
    (found,) = (r for r in runs if (r.job, r.backend, r.ranks, r.hosts) == (job, "ringcomm", ranks, 2))
    assert found.values is not None
    found.values.update(values)
    text, good = report(runs, quick=False)
    assert not good
    failed = [line for line in text.splitlines() if line.startswith("  FAILED") and check in line]
    assert len(failed) == 2, text
    start = f"  FAILED  {job}, {ranks} ranks on 2 hosts, ringcomm and "
    assert failed[0].startswith(start + "gloo: ") and failed[1].startswith(start + "the same on one host: ")


def test_no_runs_is_not_success() -> None:
    assert not report([], quick=False)[1]


def test_policy_lines_become_a_table() -> None:
    runs = good_runs()
    runs[1].log = LINE.format(size="2194984 B", ranks=2, schedule="ring (slot 256 KiB, 1 channel)") * 2
    runs[1].log += LINE.format(size="16.0 MiB", ranks=2, schedule="ring (slot 256 KiB, 1 channel)") + "other output\n"
    text, _ = report(runs, quick=False)
    (line,) = (line for line in text.splitlines() if "all_reduce" in line)
    expected = "2 all_reduce ring (slot 256 KiB, 1 channel) over shm default.yaml:7 2.093 MiB, 16 MiB"
    assert " ".join(line.split()) == expected
