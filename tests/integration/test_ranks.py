"""The launcher that all multi-rank tests stand on: results, failures, deaths and hangs are reported as they were."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from ranks import Dead, RankError, RankPool, run_ranks


def total(rank: int, world: int, value: float) -> float:
    dist.init_process_group("gloo")
    tensor = torch.full((3,), value * (rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor[0].item()


def group_total(rank: int, world: int) -> tuple[float, int]:
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    return tensor.item(), os.getpid()


def fail_on(rank: int, world: int, bad: int) -> int:
    if rank == bad:
        raise ValueError(f"rank {rank} was told to fail")
    return rank


def die_on(rank: int, world: int, bad: int) -> str:
    if rank == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def hang_on(rank: int, world: int, bad: int) -> None:
    if rank == bad:
        time.sleep(60)


def variable(rank: int, world: int, name: str) -> str | None:
    return os.environ.get(name)


def test_results_come_back_by_rank() -> None:
    assert run_ranks(total, 3, 2.0) == [12.0, 12.0, 12.0]


def test_pool_without_a_group_makes_one_per_call(rank_pool: Callable[..., RankPool]) -> None:
    pool = rank_pool(2)
    assert [pool.run(total, float(i)) for i in range(3)] == [[0.0, 0.0], [3.0, 3.0], [6.0, 6.0]]


def test_pool_keeps_its_group_and_processes(rank_pool: Callable[..., RankPool]) -> None:
    pool = rank_pool(2, backend="gloo")
    assert pool.run(group_total) == pool.run(group_total)


def test_failure_names_the_rank_and_the_pool_recovers(rank_pool: Callable[..., RankPool]) -> None:
    pool = rank_pool(2, backend="gloo")
    with pytest.raises(RankError, match="rank 1 was told to fail") as caught:
        pool.run(fail_on, 1)
    assert list(caught.value.errors) == [1]
    assert isinstance(caught.value.errors[1], ValueError)
    assert pool.run(group_total)[0][0] == 3.0


def test_death_is_an_error_unless_expected() -> None:
    with pytest.raises(RankError, match="rank 0 of 2: died with exit status -9"):
        run_ranks(die_on, 2, 0)
    survivor, victim = run_ranks(die_on, 2, 1, expect_dead=[1])
    assert survivor == "alive"
    assert isinstance(victim, Dead) and victim.exitcode == -signal.SIGKILL


def test_an_expected_death_that_does_not_come_is_an_error() -> None:
    with pytest.raises(RankError, match="expected to die but returned"):
        run_ranks(fail_on, 2, 5, expect_dead=[1])


def test_hang_ends_at_the_limit_with_stacks() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match="hang_on") as caught:
        run_ranks(hang_on, 2, 1, timeout=2)
    assert list(caught.value.errors) == [1]
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("name", ["RINGCOMM_NOTHING", "TORCH_NOTHING"])
def test_environment_reaches_the_ranks_only(name: str) -> None:
    assert run_ranks(variable, 2, name, env={name: "7"}) == ["7", "7"]
    assert name not in os.environ
