"""Groups made from a group by the backend itself (split, shrink, merge), and where torch 2.13 does not let it."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import RankPool, run_ranks

Pools = Callable[..., RankPool]
CPU = torch.device("cpu")
SHRINK_ABORT = 1


def total(group: Any, count: int = 5) -> float:
    tensor = torch.full((count,), 1.0)
    group.allreduce([tensor]).wait()
    return tensor[-1].item()


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:ringcomm")


def splits(rank: int, world: int) -> list[Any]:
    """By the ProcessGroup's own method: dist.split_group wants an accelerator."""
    parent: Any = dist.group.WORLD
    mine = [0, 2] if rank % 2 == 0 else [1, 3]
    before = mappings()
    results: list[Any] = []
    for turn in range(3):
        child = parent.split_group(mine, timeout=timedelta(seconds=30), group_name=f"split {turn} {mine}")
        results.append((child.rank(), child.size(), total(child), total(child, 40_000)))
        text = ""
        if rank == 0:
            try:
                child.monitored_barrier(timedelta(seconds=0.1))
            except RuntimeError as error:
                text = str(error)
            results.append("rank 2 (host" in text)  # by its number in the job, not in the child
        child.shutdown()
        del child
    results.append(total(parent))
    results.append(mappings() <= before)
    return results


def test_split(rank_pool: Pools) -> None:
    for rank, results in enumerate(rank_pool(4, backend="ringcomm").run(splits)):
        one = (rank // 2, 2, 2.0, 2.0)
        assert results == ([one, True] if rank == 0 else [one]) * 3 + [4.0, True], results


def split_after_set_timeout(rank: int, world: int) -> str:
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=100))
    parent: Any = dist.group.WORLD
    parent.set_timeout(timedelta(seconds=4))
    child = parent.split_group([0, 1], group_name="a later split")
    parent.set_timeout(timedelta(seconds=100))
    text = ""
    if rank == 0:
        try:
            total(child)
        except RuntimeError as error:
            text = str(error)
    dist.barrier(parent)
    child.shutdown()
    dist.destroy_process_group()
    return text


def test_a_split_has_the_timeout_that_was_set() -> None:
    text = run_ranks(split_after_set_timeout, 2)[0]
    assert "Timed out after" in text and "rank 1 (host" in text, text


def outside(rank: int, world: int) -> tuple[bool, str, bool, bool]:
    parent: Any = dist.group.WORLD
    backend = parent._get_backend(CPU)
    try:
        dist.split_group(parent, [[0, 1]])
        text = "accepted"
    except RuntimeError as error:
        text = str(error)
    options = copy.deepcopy(backend.options)
    backend.perform_nocolor_split(CPU)
    same = options is not backend.options and options._timeout == backend.options._timeout
    return backend.supports_splitting, text, backend.supports_shrinking, same


def test_what_torch_asks_before_it_splits(rank_pool: Pools) -> None:
    for splitting, text, shrinking, same in rank_pool(2, backend="ringcomm").run(outside):
        assert splitting and shrinking and same
        assert "No device associated with the default pg" in text  # torch's own refusal on CPU (docs/c10d.md)


def shrinks(rank: int, world: int, dies: bool) -> list[Any] | None:
    """The default group without rank 1, and then without what was rank 2 there."""
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=30))
    store = dist.distributed_c10d._get_default_store()
    total(dist.group.WORLD)
    if rank == 1:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        store.wait(["done"])
        return None
    if dies:
        with contextlib.suppress(dist.DistBackendError):  # the group has failed; the shrunk one must not care
            total(dist.group.WORLD)
    group: Any = dist.shrink_group([1], shrink_flags=SHRINK_ABORT if dies else 0)
    results: list[Any] = [dist.get_rank(), dist.get_world_size(), total(group), dist.get_backend()]
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    results.append(tensor[0].item())
    if rank == 3:
        store.wait(["done"])
        return results
    smaller: Any = dist.shrink_group([2])
    results += [smaller.rank(), total(smaller)]
    dist.barrier()
    if rank == 0:
        store.set("done", "")
    return results


@pytest.mark.parametrize("dies", [False, True])
def test_shrink(dies: bool) -> None:
    results = run_ranks(shrinks, 4, dies, expect_dead=[1] if dies else [], timeout=90)
    wanted = [3.0, "ringcomm", 3.0]
    assert results[0] == [0, 3, *wanted, 0, 2.0]
    assert results[2] == [1, 3, *wanted, 1, 2.0]
    assert results[3] == [2, 3, *wanted]


def merges(rank: int, world: int) -> list[float]:
    """Pairs become one group of four over a store all of them know."""
    pairs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    store = dist.PrefixStore("merge", dist.distributed_c10d._get_default_store())
    merged: Any = pairs[rank // 2]
    whole = merged.merge_remote_group(store, 4, timeout=timedelta(seconds=30), group_name="whole")
    results = [float(whole.size()), total(whole), total(merged)]
    whole.shutdown()
    return results


def test_merge(rank_pool: Pools) -> None:
    assert rank_pool(4, backend="ringcomm").run(merges) == [[4.0, 4.0, 2.0]] * 4
