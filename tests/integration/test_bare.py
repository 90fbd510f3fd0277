"""Groups that torch.distributed does not know: made with a bare store, as torchft and torch's RPC make theirs."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringcomm
from ranks import RankPool, run_ranks
from ringcomm import _register

Pools = Callable[..., RankPool]
LIMIT = timedelta(seconds=30)


def shared_store(rank: int, world: int) -> Any:
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False, LIMIT)


def usage() -> dict[str, int]:
    gc.collect()
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "mappings": Path("/proc/self/maps").read_text().count("memfd:ringcomm"),
        "KiB": int(status["VmRSS"].split()[0]),
    }


def total(backend: Any, count: int = 20_000) -> float:
    tensor = torch.ones(count)
    backend.allreduce([tensor]).wait()
    return tensor[-1].item()


def again_and_again(rank: int, world: int, rounds: int) -> tuple[dict[str, int], dict[str, int]]:
    """Three alive at a time, over one store; they end by shutdown, by abort, or by being forgotten."""
    store = shared_store(rank, world)
    alive: list[Any] = []
    before: dict[str, int] = {}
    for turn in range(rounds):
        if turn == rounds // 3:
            before = usage()
        alive.append(ringcomm.create_backend(store, rank, world, LIMIT))
        for backend in alive:
            assert total(backend) == world
        if len(alive) < 3:
            continue
        oldest = alive.pop(0)
        # Nobody may leave while another still waits for its part.
        alive[0].barrier().wait()
        if turn % 3 == 0:
            oldest.shutdown()
        elif turn % 3 == 1:
            oldest.abort()
        del oldest
    return before, usage()


def test_made_again_and_again_over_one_store_nothing_is_left(rank_pool: Pools) -> None:
    for before, after in rank_pool(3).run(again_and_again, 90, timeout=180):
        for what in ("descriptors", "threads", "mappings"):
            assert after[what] <= before[what] + 3, (what, before, after)
        # A group's slots alone are over 1 MiB; 60 of them came and went.
        assert after["KiB"] < before["KiB"] + 8 * 1024, (before, after)


def aborted_with_works(rank: int, world: int) -> tuple[str, int]:
    """abort() ends what is pending, and a forgotten object with a pending work frees everything once that is gone."""
    store = shared_store(rank, world)
    backend: Any = ringcomm.create_backend(store, rank, world, LIMIT)
    total(backend)
    backend.shutdown()
    del backend
    mappings = usage()["mappings"]
    for turn in range(5):
        backend = ringcomm.create_backend(store, rank, world, LIMIT)
        total(backend)
        store.set(f"{turn}/{rank}", "")
        store.wait([f"{turn}/{r}" for r in range(world)])
        if rank == 0:
            work = backend.allreduce([torch.ones(1 << 18)])
            backend.abort()
            try:
                work.wait()
                return "nothing was raised", 0
            except dist.DistBackendError as error:
                text = str(error)
            del work
        else:
            text = "abort"
            store.wait([f"aborted {turn}"])
        store.set(f"aborted {turn}", "")
        del backend
    return text, usage()["mappings"] - mappings


def test_abort_frees_everything(rank_pool: Pools) -> None:
    for text, left in rank_pool(2).run(aborted_with_works):
        assert "abort" in text and left <= 0, (text, left)


def as_threads(rank: int, world: int) -> list[float]:
    """All ranks in one process, as torchft's tests have them."""
    store = dist.HashStore()
    sums: list[float] = []

    def body(number: int) -> None:
        for turn in range(3):
            backend: Any = ringcomm.create_backend(dist.PrefixStore(str(turn), store), number, 3, LIMIT)
            sums.append(total(backend))
            backend.monitored_barrier(LIMIT)
            backend.shutdown()

    threads = [threading.Thread(target=body, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


def test_ranks_may_be_threads_of_one_process() -> None:
    assert run_ranks(as_threads, 1) == [[3.0] * 9]


def by_the_creator(rank: int, world: int) -> list[Any]:
    """As torch's RPC calls ProcessGroupGloo: no name, no ranks; it must serve object collectives."""
    options: Any = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.timeout = (
        shared_store(rank, world),
        rank,
        world,
        LIMIT,
    )
    options.group_id, options.global_ranks_in_group = "", []
    results: list[Any] = []
    for _ in range(3):
        group: Any = _register._create(options, None)
        objects: list[Any] = [None] * world
        dist.all_gather_object(objects, {"rank": rank}, group)
        results.append(isinstance(group, dist.ProcessGroup) and objects == [{"rank": r} for r in range(world)])
        results.append((group.rank(), group.size(), group._get_backend(torch.device("cpu")).name()))
        group.barrier().wait()
        group.shutdown()
    return results


def test_the_creator_without_a_name_gives_a_process_group(rank_pool: Pools) -> None:
    for rank, results in enumerate(rank_pool(2).run(by_the_creator)):
        assert results == [True, (rank, 2, "ringcomm")] * 3


def into_a_group(rank: int, world: int) -> list[float]:
    """As torchft does it: a ProcessGroup of one's own around the bare backend, a new one when members change."""
    store = shared_store(rank, world)
    results = []
    for quorum in range(3):
        prefix = dist.PrefixStore(f"quorum {quorum}", store)
        group: Any = dist.ProcessGroup(prefix, rank, world)
        backend = ringcomm.create_backend(prefix, rank, world, LIMIT, name=f"quorum {quorum}")
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
        results.append(total(group))
        ringcomm.monitored_barrier(group, LIMIT)
        group.abort()
    return results


def test_a_bare_backend_in_a_group_of_ones_own(rank_pool: Pools) -> None:
    assert rank_pool(2).run(into_a_group) == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    ("rank", "size", "limit", "text"),
    [
        (-1, 2, LIMIT, "rank is -1; allowed are 0 to 1"),
        (2, 2, LIMIT, "rank is 2; allowed are 0 to 1"),
        (0, 0, LIMIT, "size is 0; it must be at least 1"),
        (0, 1, timedelta(0), r"timeout is datetime.timedelta\(0\); allowed are None and a timedelta above zero"),
        (0, 1, timedelta(seconds=-1), "timeout is .*; allowed are"),
        (0, 1, 5, "timeout is 5; allowed are"),
    ],
)
def test_wrong_arguments_are_refused(rank: int, size: int, limit: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ringcomm.create_backend(dist.HashStore(), rank, size, limit)
