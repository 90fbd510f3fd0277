"""Whoever connects to a rank's socket without the group's secret gets nothing and does no harm."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import start
from ranks import run_ranks


def own_socket() -> str:
    links = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.add(os.readlink(link))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    (name,) = {row[7] for row in rows if len(row) == 8 and "@ringcomm-" in row[7] and f"socket:[{row[6]}]" in links}
    return "\0" + name[1:]


def connect(name: str) -> socket.socket:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(5)
    s.connect(name)
    return s


def answer(name: str, question: bytes) -> bytes:
    with connect(name) as s:
        s.send(question)
        try:
            return s.recv(100)
        except ConnectionResetError:
            return b""


def visited(rank: int, world: int) -> Any:
    start()
    name = own_socket()
    before = len(os.listdir("/proc/self/fd"))
    answers = [answer(name, q) for q in (b"x", b"garbage" * 1000, bytes(16), os.urandom(16), b"\0" * 17)]
    silent = [connect(name) for _ in range(400)]
    for s in silent[:50]:
        s.close()
    time.sleep(0.5)
    held = len(os.listdir("/proc/self/fd")) - before - (len(silent) - 50)
    # Groups are still made past the silent ones, and calls go on.
    group = dist.new_group()
    tensor = torch.ones(1 << 16)
    dist.all_reduce(tensor, group=group)
    cpu, began = time.process_time(), time.monotonic()
    time.sleep(2.0)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    for s in silent:
        s.close()
    time.sleep(0.5)
    after = len(os.listdir("/proc/self/fd")) - before
    dist.barrier()
    dist.destroy_process_group()
    return answers, held, share, after, tensor.mean().item()


def test_strangers_get_nothing_and_do_no_harm() -> None:
    for answers, held, share, after, value in run_ranks(visited, 2):
        assert answers == [b""] * 5
        assert held <= 256 + 5, "silent connections are bounded"
        assert share < 0.05, "they cost no processor time"
        assert after < 10
        assert value == 2.0


def left_alone(rank: int, world: int) -> int:
    start()
    before = len(os.listdir("/proc/self/fd"))
    silent = [connect(own_socket()) for _ in range(10)]
    time.sleep(12.5)
    held = len(os.listdir("/proc/self/fd")) - before - len(silent)
    for s in silent:
        s.close()
    return held


@pytest.mark.long
def test_a_silent_connection_is_closed_after_a_while() -> None:
    assert run_ranks(left_alone, 1) == [0]
