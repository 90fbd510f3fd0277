"""RINGCOMM_DEBUG: what each level says, and where."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringcomm
from ranks import run_ranks

HOST = socket.gethostname()
RING = {"version": 1, "policy": {"all_reduce": [{"schedule": "ring", "channels": 2}]}}


def job(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm", pg_options=RING)
    dist.all_reduce(torch.ones(1000))
    dist.all_reduce(torch.ones(1000))
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2), 0)
    dist.destroy_process_group()


def aborted(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm")
    if rank == 0:
        dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).abort()
    with suppress(dist.DistBackendError):
        dist.barrier()


def lines(folder: Path, level: str, body: Any = job) -> list[list[str]]:
    """By rank, without the prefix, which is checked."""
    env: dict[str, str | None] = {"RINGCOMM_DEBUG": level, "RINGCOMM_DEBUG_FILE": str(folder / "%h-%p-%r.log")}
    run_ranks(body, 2, env=env)
    found = []
    for rank in range(2):
        (path,) = folder.glob(f"*-{rank}.log")
        pid = re.fullmatch(rf"{re.escape(HOST)}-(\d+)-{rank}\.log", path.name)
        assert pid, path.name
        mark = re.compile(rf"ringcomm (WARN|INFO|DEBUG) \[{re.escape(HOST)}:{pid.group(1)}\] (.*)")
        matches = [mark.fullmatch(line) for line in path.read_text().splitlines()]
        assert all(matches), path.read_text()
        found.append([f"{m.group(1)} {m.group(2)}" for m in matches if m])
    return found


def later_groups(rank: int, world: int, folder: str) -> None:
    del os.environ["RANK"]  # as where nobody sets it: a file's %r is the rank in the job all the same
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    first = {"debug": {"level": "INFO", "file": f"{folder}/first-%r"}}
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    dist.new_group([1], backend="ringcomm", pg_options=first)
    dist.new_group(backend="ringcomm", pg_options=None if rank == 1 else first)
    dist.new_group(backend="ringcomm", group_desc="silent")
    other = {"debug": {"level": "DEBUG", "file": f"{folder}/second-%r"}}
    for _ in range(2):
        group = dist.new_group(backend="ringcomm", pg_options=other)
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group()


def other_engines(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm", pg_options={"progress": {"workers": 2}, "memory": {"limit": "1GiB"}})
    dist.new_group()  # asks for nothing: nothing is said
    wanted = {"progress": {"workers": 3, "spin": "5us"}, "memory": {"limit": "512MiB", "registered": "1MiB"}}
    for _ in range(2):
        dist.new_group(pg_options=wanted)
    dist.destroy_process_group()


def having(found: list[str], *parts: str) -> list[str]:
    return [line for line in found if all(part in line for part in parts)]


def test_warn_says_nothing_where_all_is_well(tmp_path: Path) -> None:
    assert lines(tmp_path, "WARN") == [[], []]


def test_info_says_what_the_group_is_made_of(tmp_path: Path) -> None:
    first, second = lines(tmp_path, "INFO")
    assert having(
        first, f"ringcomm {ringcomm.__version__}, torch {torch.__version__}, Python", "reductions by", "cores"
    )
    assert having(first, "configuration: pg_options (a dict)")
    assert having(first, "debug.level is INFO by environment RINGCOMM_DEBUG")
    (made,) = having(first, "group '0': 2 ranks on 1 node", f"({HOST}: 2)")
    for part in ("over shm", "2 channels", "4 slots (fan_out 128KiB, pair 128KiB)", "spin", "timeout 1800 s"):
        assert part in made
    assert having(first, "group '0': rank 0 of 2, rank 0 of the job")
    assert having(second, "group '0': rank 1 of 2, rank 1 of the job")
    policy = having(first, "policy: all_reduce 4000 B x 2 ranks -> ring", "2 channels", "over shm", "pg_options")
    assert len(policy) == 1
    assert all(line.startswith("INFO ") for line in first + second)


def test_debug_says_when_each_call_begins_and_ends(tmp_path: Path) -> None:
    first, second = lines(tmp_path, "DEBUG")
    for found in (first, second):
        issued = having(found, "DEBUG issue: all_reduce #2 (float32, sum, 4000 bytes) of group '0' by ring")
        ended = having(found, "DEBUG end: all_reduce #2 (float32, sum, 4000 bytes) of group '0' after")
        assert len(issued) == len(ended) == 1 and found.index(issued[0]) < found.index(ended[0])
        assert re.search(r"after \d+\.\d us$", ended[0])
    assert len(having(first, "issue: send of 8 bytes to rank 1")) == len(having(first, "end: send of 8 bytes")) == 1
    assert len(having(second, "issue: recv of 8 bytes from rank 0")) == len(having(second, "end: recv")) == 1


def test_info_says_that_a_group_failed(tmp_path: Path) -> None:
    for found in lines(tmp_path, "INFO", aborted):
        assert len(having(found, "INFO group '0' failed: ringcomm: group '0' was aborted by rank 0")) == 1


def test_the_first_groups_log_is_the_processs(tmp_path: Path) -> None:
    run_ranks(later_groups, 2, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first-0", "first-1"]
    for rank, before in ((0, 0), (1, 1)):
        found = (tmp_path / f"first-{rank}").read_text().splitlines()
        assert len(having(found, "INFO", "Python", "reductions by")) == 1
        assert len(having(found, "INFO", f"rank {rank} of 2, rank {rank} of the job")) == 4, found
        assert len(having(found, "INFO", "rank 0 of 1, rank 1 of the job")) == before
        (level,) = having(found, "WARN", "debug.level is DEBUG for this group (pg_options: debug.level)")
        assert "it stays INFO (pg_options: debug.level)" in level
        (file,) = having(found, "WARN", f"debug.file is {tmp_path}/second-%r for this group")
        assert f"it stays {tmp_path}/first-%r" in file
        assert having(found, "DEBUG") == [level]


def test_a_later_group_that_asks_for_another_engine_is_told_once_what_holds(tmp_path: Path) -> None:
    for found in lines(tmp_path, "WARN", other_engines):
        assert len(found) == 3, found
        for key, asked, holds in (
            ("progress.workers", "3", "2 (pg_options: progress.workers)"),
            ("memory.limit", "512MiB", "1GiB (pg_options: memory.limit)"),
            ("memory.registered", "1MiB", "auto (built-in default)"),
        ):
            (line,) = having(found, f"WARN {key} is {asked} for this group (pg_options: {key})")
            assert line.endswith(f"it stays {holds}")
