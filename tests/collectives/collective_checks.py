"""Runs cases on a pool and shows what was wrong; what most tests of this folder end with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from collective_operations import Case, run_cases
from ranks import RankPool

Pools = Callable[..., RankPool]
RANKS = [1, 2, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 8))]


def check(pool: RankPool, cases: Sequence[Case], timeout: float = 120) -> None:
    nothing_wrong(pool.run(run_cases, list(cases), timeout=timeout))


def nothing_wrong(reports: Sequence[Sequence[str]]) -> None:
    """Each rank's report is a list of sentences."""
    wrong = [line for lines in reports for line in lines]
    assert not wrong, f"{len(wrong)} wrong\n" + "\n".join(wrong[:20])
