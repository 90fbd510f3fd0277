"""The protocol of docs/threads_model.md loses no wake-up and no message, and each planted bug is found."""

from __future__ import annotations

import pytest

from model_bugs import Bug
from model_runs import LONG, PLANTED, QUICK, Run


@pytest.mark.parametrize("run", [*QUICK, *(pytest.param(r, marks=pytest.mark.long) for r in LONG)], ids=str)
def test_every_interleaving_ends_well(run: Run) -> None:
    result = run.explore()
    assert result.problem is None, str(result)


@pytest.mark.parametrize("run, problem", PLANTED, ids=[str(run) for run, _ in PLANTED])
def test_a_planted_bug_is_found(run: Run, problem: str) -> None:
    result = run.explore()
    assert problem in str(result.problem), str(result)
    assert result.trace


def test_every_bug_is_planted_somewhere() -> None:
    assert set(Bug) <= {change for run, _ in PLANTED for change in run.changes}
