"""Groups that come again: re-init in one process, the creator with a bare store, threads on one group, workers."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import finish_well, script, start
from process_usage import give_back_free_memory, usage
from ranks import run_ranks
from test_resources import not_grown


def init_again(rank: int, world: int, rounds: int) -> tuple[float, dict[str, int], dict[str, int]]:
    """The whole of torch.distributed goes and comes back, on the same store, with a sub-group each time."""
    total = 0.0
    for i in range(rounds + 10):
        start(timeout=60)
        tensor = torch.ones(5000)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=dist.new_group())
        total += tensor[-1].item()
        dist.destroy_process_group()
        if i == 9:
            give_back_free_memory()
            before = usage()
    give_back_free_memory()
    return total / (rounds + 10), before, usage()


@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.long)])
def test_a_process_may_init_and_destroy_again_and_again(rounds: int) -> None:
    for average, before, after in run_ranks(init_again, 2, rounds, timeout=580):
        assert average == 4.0
        not_grown(before, after, 2 * rounds)


def backend_on(store: Any, rank: int, world: int) -> Any:
    """As libraries with their own process groups do: the creator that torch has, no group name, no global ranks."""
    from torch.distributed.distributed_c10d import Backend, _DistributedBackendOptions

    options = _DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, world
    options.timeout = timedelta(seconds=60)
    made: Any = Backend._plugins["RINGCOMM"].creator_fn(options, None)
    # It may come as a ProcessGroup that holds the backend, for those who cannot use a bare one.
    return made._get_backend(torch.device("cpu")) if isinstance(made, dist.ProcessGroup) else made


def bare_stores(rank: int, world: int, rounds: int) -> tuple[list[float], dict[str, int], dict[str, int]]:
    """A new quorum each round, on the same store; the last backend is still there when the next one is made. Every
    other one is aborted before it is shut down, as after a failure."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
    values: list[float] = []
    last: Any = None
    for i in range(rounds + 10):
        backend = backend_on(dist.PrefixStore("quorum", store), rank, world)
        tensor = torch.ones(3000)
        backend.allreduce([tensor], dist.AllreduceOptions()).wait()
        values.append(tensor[-1].item())
        if last is not None:
            if i % 2:
                last.abort()
            last.shutdown()
        last = backend
        if i == 9:
            give_back_free_memory()
            before = usage()
    give_back_free_memory()
    after = usage()
    last.shutdown()
    return values, before, after


@pytest.mark.parametrize("rounds", [40, pytest.param(600, marks=pytest.mark.long)])
def test_the_creator_may_be_called_again_and_again_with_a_bare_store(rounds: int) -> None:
    for values, before, after in run_ranks(bare_stores, 2, rounds, timeout=580):
        assert values == [2.0] * (rounds + 10)
        not_grown(before, after, rounds)


def one_group_from_threads(rank: int, world: int, threads: int, calls: int) -> list[str]:
    """All threads use the default group. They take turns in an agreed order to issue, and wait on their own."""
    start()
    turn, turns = 0, threading.Condition()
    wrong: list[str] = []

    def is_turn_of(number: int) -> bool:
        return turn == number

    def use(thread: int) -> None:
        nonlocal turn
        for call in range(calls):
            number = call * threads + thread
            tensor = torch.full((1 + 3000 * (number % 3),), float(number + rank))
            with turns:
                turns.wait_for(partial(is_turn_of, number))
                work = dist.all_reduce(tensor, async_op=True)
                turn += 1
                turns.notify_all()
            assert work is not None
            work.wait()
            if not (tensor == number * world + world * (world - 1) / 2).all():
                wrong.append(f"rank {rank}: thread {thread}, call {call}: {tensor[:3]}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(use, range(threads)))
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_threads_may_share_a_group_in_an_agreed_order(world: int) -> None:
    assert run_ranks(one_group_from_threads, world, 4, 50) == [[]] * world


def test_a_dataloader_worker_that_uses_the_group_is_told_and_training_goes_on(tmp_path: Path) -> None:
    text = """
        from torch.utils.data import DataLoader, Dataset

        class Bad(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                dist.all_reduce(torch.ones(1))
                return i

        rank = int(sys.argv[1])
        init(rank, 2, sys.argv[2])
        try:
            list(DataLoader(Bad(), num_workers=1, multiprocessing_context="fork"))
        except RuntimeError as error:
            print("forked after the group" in str(error) and "DataLoader worker process" in str(error))
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        print(tensor.item())
        dist.destroy_process_group()
    """
    workers = [script(text, str(rank), str(tmp_path / "store")) for rank in range(2)]
    assert [finish_well(worker, 90) for worker in workers] == ["True\n2.0\n"] * 2
