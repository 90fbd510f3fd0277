"""Torch's own analyser finds the culprit in the files that ranks leave, and nothing where nothing is wrong."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringcomm
from flight_files import analysis, start, summed, wait_for_file
from ranks import run_ranks

SHORT = 2.0
"""Seconds a call may take where it must time out; a busy machine's ranks reach it within that."""


def many_calls(rank: int, world: int, prefix: str) -> None:
    start()
    pair = dist.new_group([0, 2], group_desc="evens")
    tensor = torch.ones(4, 3)
    for _ in range(2):
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 1)
        dist.reduce(tensor, 2)
        dist.all_gather([torch.empty(4, 3) for _ in range(world)], tensor)
        dist.all_gather_into_tensor(torch.empty(12, 3), tensor)
        dist.reduce_scatter(torch.empty(4, 3), [tensor] * world)
        dist.reduce_scatter_tensor(torch.empty(4, 3), torch.ones(12, 3))
        dist.all_to_all_single(torch.empty(world, 2), torch.ones(world, 2))
        dist.all_to_all([torch.empty(r + rank) for r in range(world)], [torch.ones(r + rank) for r in range(world)])
        dist.gather(tensor, [torch.empty(4, 3) for _ in range(world)] if rank == 0 else None, 0)
        dist.scatter(tensor, [tensor] * world if rank == 1 else None, 1)
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(5, dtype=torch.int32)][:1])
        dist.barrier()
        if rank < 2:  # messages between some ranks only: torch's analyser would take them for calls of all three
            peer = 1 - rank
            dist.send(tensor, peer) if rank == 0 else dist.recv(tensor, peer)
        if rank != 1:
            summed(7, group=pair)
    ringcomm.flight_record.dump(prefix)
    dist.barrier()
    dist.destroy_process_group()


def test_the_analyser_finds_nothing_wrong_where_all_is_well(tmp_path: Path) -> None:
    run_ranks(many_calls, 3, str(tmp_path / "fr_"))
    database = tmp_path / "database"
    said = analysis(tmp_path, "-o", str(database))
    for sign in ("joining", "error", "mismatch", "missing", "cannot decide"):
        assert sign not in said.lower(), said
    _, found = pickle.loads(database.read_bytes())
    assert len(found.collectives) == 2 * (13 + 1) and all(c.pass_check for c in found.collectives)
    assert {(group.desc, group.size) for group in found.groups} == {("default_pg", 3), ("evens", 2)}
    assert [c.collective_name for c in found.collectives if "evens" in c.pg_desc] == ["gloo:all_reduce"] * 2


def another_collective(rank: int, world: int, prefix: str) -> str:
    start(pg_options={"version": 1, "debug": {"flight_record": prefix}})
    summed(8)
    summed(8)
    try:
        dist.broadcast(torch.ones(6), 0) if rank == 2 else summed(6)
    except dist.DistBackendError as error:
        return str(error)
    return ""


def test_a_rank_that_calls_another_collective_is_named(tmp_path: Path) -> None:
    texts = run_ranks(another_collective, 3, str(tmp_path / "fr_"))
    assert all("ranks disagree on call #3" in text for text in texts)
    said = analysis(tmp_path)
    assert "Collective sequence number: 3 has errors" in said and "joining" not in said
    assert "collective: gloo:all_reduce" in said and "input sizes: [[6]]" in said
    assert "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH" in said
    assert "'all_reduce' does not match found collective type: 'broadcast'" in said
    assert "Culprit rank 1" not in said
    said = analysis(tmp_path, first=2)  # its weakness, of which docs/hangs.md warns: then all others are
    assert "collective: gloo:broadcast" in said and "Culprit rank 0;" in said and "Culprit rank 1;" in said


def leaves_one_out(rank: int, world: int, prefix: str) -> str:
    """Rank 1 never makes the third call, has nothing pending, touches nothing: its file comes all the same."""
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = prefix
    store = start(SHORT)
    summed(8)
    summed(8)
    try:
        if rank == 1:
            store.wait([f"over/{r}" for r in (0, 2)], timedelta(seconds=60))
            wait_for_file(prefix + "1")
        else:
            summed(5, 2)
    except dist.DistBackendError as error:
        store.set(f"over/{rank}", "")
        return str(error)
    return ""


def test_a_rank_that_leaves_a_call_out_is_named(tmp_path: Path) -> None:
    texts = run_ranks(leaves_one_out, 3, str(tmp_path / "fr_"))
    assert "Timed out" in texts[0] and "rank 1 (host" in texts[0]
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "fr_"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    assert "Not all ranks joining collective, sequence number: 3" in said
    assert "missing ranks: {1}" in said
    assert "collective: gloo:all_reduce" in said and "input sizes: [[5, 2]]" in said
    assert "collective state: started" in said
