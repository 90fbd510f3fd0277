"""Two hosts: a dead, stopped or disagreeing rank, a cut cable, strangers on the port. Who is to blame is named on the
other host, in bounded time, and strangers disturb nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import LATE, LEFT, NOTICED, all_reduce, allowed, destroy_seconds, failure, signal_self, start, wake_later
from lab_ranks import lab, run_on
from net_lab import Lab
from ringcomm.bootstrap import wires

TIMEOUT = 3.0
STOP = 8.0
BUSY = 2.0
"""Seconds more than promised that a busy machine may take to let a process run."""


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with lab(2) as made:
        yield made


def last(store: Any, rank: int, world: int, gone: int) -> None:
    """Rank 0 holds the store, so it ends after all who need it."""
    store.set(f"end/{rank}", "")
    if rank == 0:
        store.wait([f"end/{peer}" for peer in range(world) if peer != gone], timedelta(seconds=30))


def in_all_reduce() -> None:
    big = torch.ones(4 << 20)
    while True:
        dist.all_reduce(big)


def in_messages() -> None:
    """Everybody waits for the last rank of the other host."""
    dist.recv(torch.ones(4), src=dist.get_world_size() - 1)


CALLS: dict[str, Callable[[], None]] = {"all_reduce": in_all_reduce, "recv": in_messages}


def killed(rank: int, world: int, victim: int, call: str) -> Any:
    store = start()
    all_reduce()
    if rank == victim:
        signal_self(store, signal.SIGKILL, 0.5)
        if call == "recv":
            time.sleep(60)
    found = failure(CALLS[call])
    destroyed = destroy_seconds()
    result = found, found.at - float(store.get("signalled")), destroyed, store.get("pid").decode()
    last(store, rank, world, victim)
    return result


@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_a_killed_rank_is_named_on_both_hosts(two: Lab, call: str, per_host: int) -> None:
    victim = 2 * per_host - 1
    results = run_on(two, per_host, killed, victim, call, expect_dead=[victim])
    for found, seconds, destroyed, pid in results[:victim]:
        assert f"rank {victim} (host host1, pid {pid})" in found.text
        assert not any(f"rank {r} (host" in found.text for r in range(victim)), found.text
        assert seconds < allowed(NOTICED) and destroyed < allowed(LEFT)


def on_both_sides(rank: int, world: int, ready: str) -> Any:
    start(timeout=60)
    all_reduce()
    Path(ready, str(rank)).touch()
    found = failure(in_all_reduce)
    return found, destroy_seconds()


@pytest.mark.parametrize("per_host", [1, 2])
def test_a_cut_cable_is_noticed_on_both_sides(tmp_path: Path, per_host: int) -> None:
    at = []
    with lab(2) as made:

        def cut() -> None:
            while len(list(tmp_path.iterdir())) < 2 * per_host:
                time.sleep(0.05)
            time.sleep(0.5)
            made.cut(1)
            at.append(time.monotonic())

        threading.Thread(target=cut, daemon=True).start()
        results = run_on(made, per_host, on_both_sides, str(tmp_path))
    for rank, (found, destroyed) in enumerate(results):
        other = 1 - rank // per_host
        assert f"(host host{other}" in found.text, found.text
        assert found.at - at[0] < 3.0 + allowed(LATE) + BUSY and destroyed < allowed(LEFT)


def interrupted_before_it_told_its_port(rank: int, world: int) -> Any:
    """Ctrl-C on the last rank, in the second exchange of a group that spans hosts."""
    if rank == world - 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        opened = wires._opened

        def interrupted(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return opened(*arguments)

        wires._opened = interrupted  # type: ignore[assignment]
    # Held here: a group that cannot be made lets go of a store of its own.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0)
    found = failure(lambda: start(timeout=TIMEOUT, at_init=True, store=store, rank=rank, world_size=world))
    if rank == 0:
        time.sleep(BUSY)  # the others read in it why
    return found, os.getpid()


def test_a_rank_interrupted_while_hosts_meet_is_named_with_its_host(two: Lab) -> None:
    *others, (last_one, pid) = run_on(two, 2, interrupted_before_it_told_its_port)
    assert last_one.kind == "KeyboardInterrupt"
    for found, _ in others:
        assert found.kind == "BootstrapError" and f"rank 3 (host host1, pid {pid}) did not come" in found.text, found


def stopped(rank: int, world: int) -> Any:
    store = start(timeout=TIMEOUT)
    all_reduce()
    if rank == world - 1:
        wake_later(os.getpid(), STOP)
        signal_self(store, signal.SIGSTOP, 0.2)
        time.sleep(1.0)  # stopped within, and on again STOP later
        after = failure(all_reduce)
        last(store, rank, world, -1)
        return after
    time.sleep(0.5)
    found = failure(all_reduce)
    destroyed = destroy_seconds()
    last(store, rank, world, -1)
    return found, destroyed


def test_a_stopped_rank_of_the_other_host_is_named_at_the_timeout(two: Lab) -> None:
    *others, _ = run_on(two, 2, stopped)
    for found, destroyed in others:
        assert "imed out" in found.text and "rank 3 (host host1" in found.text
        assert not any(f"rank {r} (host" in found.text for r in range(3)), found.text
        assert TIMEOUT - 0.1 < found.seconds < TIMEOUT + allowed(LATE) and destroyed < allowed(LEFT)


def disagreeing(rank: int, world: int) -> Any:
    store = start(timeout=10)
    all_reduce()

    def calls() -> None:
        if rank == world - 1:
            dist.broadcast(torch.ones(8), 0)
        else:
            all_reduce(16)
        dist.barrier()

    found = failure(calls)
    destroyed = destroy_seconds()
    last(store, rank, world, -1)
    return found, destroyed


@pytest.mark.parametrize("per_host", [1, 2])
def test_calls_that_differ_between_hosts_are_shown_on_every_rank(two: Lab, per_host: int) -> None:
    for found, destroyed in run_on(two, per_host, disagreeing):
        assert "ranks disagree on call #2" in found.text
        assert "all_reduce" in found.text and "broadcast" in found.text
        assert found.seconds < allowed(NOTICED) and destroyed < allowed(LEFT)


def listening() -> list[int]:
    """Ports of ringcomm: those at which this process listens, less the store's."""
    inodes = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(link))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}
    return sorted(ports - {int(os.environ["MASTER_PORT"])})


def stranger(port: int, said: bytes) -> socket.socket:
    found = socket.create_connection((Lab.address(0), port), 5)
    with contextlib.suppress(OSError):
        found.sendall(said)
    return found


def ends(peer: socket.socket) -> bool:
    """Whether the other side closes within its bound for handshakes (5 s)."""
    peer.settimeout(5.0 + BUSY)
    try:
        while peer.recv(1000):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def visited(rank: int, world: int) -> Any:
    store = start(timeout=60)
    all_reduce()
    if rank == 0:
        (port,) = listening()
        store.set("port", str(port))
        before = len(os.listdir("/proc/self/fd"))
    answers: list[bool] = []
    held = None
    if rank == 1:
        port = int(store.get("port"))
        said = (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", os.urandom(64), os.urandom(1 << 16), bytes(200))
        strangers = [stranger(port, text) for text in said]
        crowd = [stranger(port, b"") for _ in range(300)]
    store.set(f"here/{rank}", "")
    store.wait([f"here/{peer}" for peer in range(world)])
    # With strangers at the door calls go on, and new groups are made.
    group = dist.new_group()
    tensor = torch.full((1 << 16,), float(rank))
    for _ in range(3):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    if rank == 0:
        held = len(os.listdir("/proc/self/fd")) - before
        cpu = time.process_time()
    if rank == 1:
        answers = [ends(peer) for peer in strangers]
        for peer in crowd:
            peer.close()
    dist.barrier()
    share = (time.process_time() - cpu) if rank == 0 else 0.0
    dist.destroy_process_group()
    last(store, rank, world, -1)
    return answers, held, share, float(tensor.mean())


def test_strangers_on_the_port_are_closed_and_disturb_nobody(two: Lab) -> None:
    one, other = run_on(two, 1, visited)
    assert other[0] == [True] * 6
    assert one[1] <= 128 + 20, "strangers are bounded in number"
    assert one[2] < 2.0, "and cost next to no processor time"
    assert one[3] == other[3] == 1.0
