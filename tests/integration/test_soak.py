"""The soak: a short one is clean, a wrong value is reported with the command that repeats it, growth is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import soak
from ranks import RankPool
from soak import Soak, text
from soak_rank import Report

ROOT = Path(__file__).resolve().parents[2]
FLAT = {"descriptors": 25, "threads": 4, "mappings": 13, "segment KiB": 12_000, "private KiB": 150_000}


def soaked(rounds: int, grow: dict[str, int] | None = None) -> Soak:
    """A soak of two ranks that has seen so many rounds; on rank 1 the quantities of `grow` rise each round."""
    run = Soak(Namespace(seed=7, ranks=2, first_round=0, rounds=None, minutes=0.0))
    for number in range(rounds):
        risen = {what: value + number * (grow or {}).get(what, 0) for what, value in FLAT.items()}
        run.add([Report(groups=2, usage=FLAT, done=Counter(all_reduce=3)), Report(groups=2, usage=risen)])
        run.rounds += 1
    return run


@pytest.mark.parametrize("what", FLAT)
def test_growth_of_each_quantity_is_seen_and_named(what: str) -> None:
    assert soaked(16).summary()["grown"] == []
    summary = soaked(16, {what: soak.TOLERANCE[what] // 4 + 1}).summary()
    assert summary["grown"] == [what] and f"GROWN: {what}" in text(summary)


def test_a_step_that_stays_is_seen_too() -> None:
    run = soaked(16)
    for usages in run.usages[10:]:
        usages[1] = {**FLAT, "descriptors": 30}
    assert run.summary()["grown"] == ["descriptors"]


def spoilt_round(rank: int, world: int, seed: int, number: int) -> Report:
    """A backend that gives wrong sums on rank 1: every all_reduce there is one too large."""
    import torch.distributed as dist

    import soak_rank

    changed: Any = dist
    right = dist.all_reduce

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = right(tensor, *args, **kwargs)
        if rank == 1 and work is None and tensor.numel():
            tensor.reshape(-1)[-1] = tensor.reshape(-1)[-1] == 0
        return work

    changed.all_reduce = all_reduce
    try:
        return soak_rank.soak_round(rank, world, seed, number)
    finally:
        changed.all_reduce = right


def test_wrong_values_end_the_soak_with_the_command_that_repeats_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "soak_round", spoilt_round)
    monkeypatch.setattr(soak, "RankPool", lambda ranks, **kwargs: RankPool(ranks, **{**kwargs, "env": None}))
    run = Soak(Namespace(seed=3, ranks=2, first_round=5, rounds=4, minutes=5.0))
    run.run()
    assert any("all_reduce" in line for line in run.wrong), run.wrong
    number = 5 + run.rounds - 1
    assert run.wrong[-1] == f"repeat with: scripts/soak --seed 3 --ranks 2 --first-round {number} --rounds 1"


@pytest.mark.long
def test_a_soak_of_75_seconds_is_clean(tmp_path: Path) -> None:
    found = tmp_path / "soak.json"
    command = [sys.executable, str(ROOT / "scripts" / "soak.py"), "--minutes", "1.25", "--json", str(found)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert out.returncode == 0, out.stdout + out.stderr[-4000:]
    summary = json.loads(found.read_text())
    assert summary["wrong"] == [] and summary["grown"] == []
    assert summary["ranks"] == 6 and summary["calls"] > 1000 and len(summary["calls by kind"]) > 15
    assert set(summary["growth"]) == set(soak.TOLERANCE), "enough rounds to judge growth"
