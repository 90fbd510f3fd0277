"""Rank functions of the RDMA tests: what runs on the nodes, one call of GuestRanks each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from collective_operations import Case, run_cases
from rdma_lab_ctl import ask, counters


@dataclass
class Seen:
    """An exception as a rank saw it, and seconds from the fault to it."""

    text: str
    after: float


def start(seconds: float = 120.0) -> Any:
    """The default group, over this node's own device; returns its store."""
    os.environ["RINGCOMM_IB_HCA"] = "=" + os.environ["RDMA_DEVICE"]
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=seconds))
    return dist.distributed_c10d._get_default_store()


def last(store: Any, gone: int = -1) -> None:
    """Rank 0 holds the store, so it ends after all who need it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store.set(f"end/{rank}", "")
    if rank == 0:
        store.wait([f"end/{peer}" for peer in range(world) if peer != gone], timedelta(seconds=60))


def values(rank: int, world: int, chosen: list[Case]) -> tuple[str, list[str]]:
    """What carries the group, and what was wrong. Rank 0 says each case as it begins, so that one which takes too long
    can be told from many."""
    store = start()
    group: Any = dist.distributed_c10d._get_default_group()
    kind = group._get_backend(torch.device("cpu")).connection_kind
    wrong, began = [], time.monotonic()
    for case in chosen:
        if rank == 0:
            print(f"{time.monotonic() - began:7.1f} s  {case}", flush=True)
        wrong += run_cases(rank, world, [case])
    dist.barrier()
    last(store)
    return kind, wrong


def messages(rank: int, world: int) -> list[float]:
    """Each rank sends to each other at once, small and large ones; how far what came is from what was sent."""
    store = start()
    peers = [peer for peer in range(world) if peer != rank]
    off = []
    for size in (1, 100, 1 << 18):
        sent = [dist.isend(torch.full((size,), float(rank + 1)), peer) for peer in peers]
        for peer in peers:
            buffer = torch.zeros(size)
            dist.recv(buffer, peer)
            off.append(float((buffer - (peer + 1)).abs().max()))
        for work in sent:
            assert work is not None
            work.wait()
    dist.barrier()
    last(store)
    return off


def carried(rank: int, world: int, size: int, calls: int) -> tuple[int, int]:
    """Bytes that this node sent by its RDMA interface and by TCP during so many all_reduces of `size` bytes."""
    store = start()
    tensor = torch.ones(size // 4)
    tcp = Path("/sys/class/net/eth0/statistics/tx_bytes")
    dist.all_reduce(tensor)
    node = int(os.environ["NODE_RANK"])
    counted = []
    for _ in range(2):
        dist.barrier()
        counted.append((counters(node)["tx_bytes"], int(tcp.read_text())))
        dist.barrier()
        for _ in range(calls if len(counted) == 1 else 0):
            dist.all_reduce(tensor)
    assert float(tensor[0]) == world ** (calls + 1)
    last(store)
    return counted[1][0] - counted[0][0], counted[1][1] - counted[0][1]


def in_all_reduce(store: Any) -> None:
    big = torch.ones(1 << 20)
    while True:
        dist.all_reduce(big)


def seen(store: Any, call: Callable[[Any], None]) -> Seen:
    """What ends the call, and how long after the time that stands in the store; nodes of one kernel have one clock."""
    try:
        call(store)
    except RuntimeError as error:
        return Seen(str(error), time.monotonic() - float(store.get("fault")))
    raise AssertionError("the call should have raised")


def after_a_while(store: Any, fault: Callable[[], object], seconds: float = 1.0) -> None:
    def strike() -> None:
        time.sleep(seconds)
        store.set("fault", repr(time.monotonic()))
        fault()

    threading.Thread(target=strike, daemon=True).start()


def killed(rank: int, world: int, victim: int) -> tuple[Seen, str]:
    store = start()
    dist.all_reduce(torch.ones(4))
    if rank == victim:
        store.set("pid", str(os.getpid()))
        after_a_while(store, lambda: os.kill(os.getpid(), signal.SIGKILL))
    found = seen(store, in_all_reduce)
    pid = store.get("pid").decode()
    last(store, victim)
    return found, pid


def link_down(rank: int, world: int, node: int) -> Seen:
    """A node's link goes down in the middle of calls; rank 0's node asks for it, and for its mending."""
    store = start()
    dist.all_reduce(torch.ones(1 << 16))
    if rank == 0:
        after_a_while(store, lambda: ask("link", node, "down"))
    try:
        found = seen(store, in_all_reduce)
        last(store)
    finally:
        if rank == 0:
            ask("link", node, "up")
    return found


def lossy(rank: int, world: int, percent: str) -> list[str]:
    """All values are right though packets are lost on both nodes' way."""
    store = start(300.0)
    node = int(os.environ["NODE_RANK"])
    ask("netem", node, "loss", percent)
    try:
        chosen = [Case("all_reduce", shape=(n,)) for n in (1, 1000, 300_000)]
        chosen += [Case("all_gather", shape=(50_000,)), Case("all_to_all_single", shape=(70_000,))]
        wrong = run_cases(rank, world, chosen)
        dist.barrier()
    finally:
        ask("netem", node, "off")
    last(store)
    return wrong
