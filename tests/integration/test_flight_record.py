"""The flight record: what it holds, and that torch's own analyser finds the culprit in the files that ranks leave."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import ringcomm
from ranks import RankError, run_ranks

Store = Any
SHORT = 2.0
"""Seconds a call may take where it must time out; a busy machine's ranks reach it within that."""


def start(timeout: float = 60.0, **kwargs: Any) -> Store:
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=timeout), **kwargs)
    return dist.distributed_c10d._get_default_store()


def summed(*shape: int, group: Any = None) -> None:
    dist.all_reduce(torch.ones(*shape), group=group)


def analysis(folder: Path, *arguments: str, first: int = 0) -> str:
    """What torch's analyser says about a folder of files. It reads them in the order of the directory, and takes the
    calls of the first for right; here that is rank `first`."""
    from torch.distributed.flight_recorder import fr_trace
    from torch.distributed.flight_recorder.components import loader

    said: list[str] = []

    def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        yield top, [], sorted(os.listdir(top), key=lambda name: (name != f"fr_{first}", name))

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Handler()
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    try:
        with patch.object(loader.os, "walk", walk):
            fr_trace.main([str(folder), "-p", "fr_", *arguments])
    finally:
        logger.removeHandler(handler)
        gc.enable()  # the analyser leaves it off
    return "\n".join(said)


# ---------------------------------------------------------------------------------------------------- nothing wrong


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


# ---------------------------------------------------------------------------------------------------- culprits


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


def wait_for_file(path: str) -> None:
    done = threading.Event()
    for _ in range(600):
        if os.path.exists(path):
            return
        done.wait(0.05)
    raise AssertionError(f"{path} did not come within 30 s")


def test_a_rank_that_leaves_a_call_out_is_named(tmp_path: Path) -> None:
    texts = run_ranks(leaves_one_out, 3, str(tmp_path / "fr_"))
    assert "Timed out" in texts[0] and "rank 1 (host" in texts[0]
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "fr_"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    assert "Not all ranks joining collective, sequence number: 3" in said
    assert "missing ranks: {1}" in said
    assert "collective: gloo:all_reduce" in said and "input sizes: [[5, 2]]" in said
    assert "collective state: started" in said


# ---------------------------------------------------------------------------------------------------- what is recorded


def in_flight(rank: int, world: int) -> Any:
    """Rank 1 comes late to two calls: what rank 0 has recorded before and after."""
    store = start()
    summed(1)
    if rank == 1:
        store.wait(["looked"])
    works = [dist.all_reduce(torch.ones(1000, dtype=torch.float64), async_op=True) for _ in range(2)]
    before = ringcomm.flight_record.dump()
    store.set("looked", "")
    for work in works:
        work.wait()
    after = ringcomm.flight_record.dump()
    dist.destroy_process_group()
    return before, after


def test_states_and_times_follow_the_calls() -> None:
    before, after = run_ranks(in_flight, 2)[0]
    assert [e["state"] for e in before["entries"]] == ["completed", "started", "scheduled"]
    assert [e["time_discovered_started_ns"] is None for e in before["entries"]] == [False, False, True]
    assert [e["retired"] for e in before["entries"]] == [True, False, False]
    assert before["pg_status"]["0"] == {
        "last_enqueued_collective": 3,
        "last_started_collective": 2,
        "last_completed_collective": 1,
    }
    for entry in after["entries"]:
        created, began, ended = (
            entry[f"time_{name}_ns"] for name in ("created", "discovered_started", "discovered_completed")
        )
        assert created <= began <= ended and entry["state"] == "completed" and entry["retired"]
        assert entry["duration_ms"] == pytest.approx((ended - began) * 1e-6)
        assert 55_000 < entry["timeout_ms"] <= 60_000  # what was left of it when the call was issued
    assert after["entries"][2]["input_dtypes"] == after["entries"][2]["output_dtypes"] == ["Double"]
    assert abs(after["entries"][0]["time_created_ns"] - before["entries"][0]["time_created_ns"]) < 1_000_000


def keys_of_both(rank: int, world: int) -> Any:
    start()
    gloo = dist.new_group(backend="gloo")
    summed(2, 3)
    summed(2, 3, group=gloo)
    theirs = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())  # type: ignore[attr-defined]
    return theirs, ringcomm.flight_record.dump()


def test_the_format_is_torchs() -> None:
    theirs, ours = run_ranks(keys_of_both, 2)[0]
    assert ours["version"] == theirs["version"]
    assert set(ours) - set(theirs) == {"rank", "messages"} and set(theirs) <= set(ours)
    (their_entry,), (our_entry,) = theirs["entries"], ours["entries"]
    assert set(their_entry) <= set(our_entry)
    for key, value in their_entry.items():
        if value is not None:
            assert isinstance(our_entry[key], type(value)), key
    for key in ("profiling_name", "input_sizes", "output_sizes", "input_dtypes", "collective_seq_id", "is_p2p"):
        assert our_entry[key] == their_entry[key], key
    assert ours["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}


def with_messages(rank: int, world: int) -> Any:
    start()
    group = dist.new_group([1, 2])
    summed(1)
    if rank == 1:
        dist.send(torch.ones(3, 2), 2, group=group)
    elif rank == 2:
        dist.recv(torch.ones(3, 2), 1, group=group)
        dist.all_gather([torch.empty(1), torch.empty(1)], torch.ones(1), group=group)
    if rank == 1:
        dist.all_gather([torch.empty(1), torch.empty(1)], torch.ones(1), group=group)
    return ringcomm.flight_record.dump(), ringcomm.flight_record.dump(messages=True)


def test_messages_have_a_list_of_their_own() -> None:
    results = run_ranks(with_messages, 3)
    assert [apart["rank"] for apart, _ in results] == [0, 1, 2]
    for rank, title in ((1, "gloo:send 0->1"), (2, "gloo:recv 1<-0")):  # numbers in the group, as torch has them
        apart, together = results[rank]
        assert [e["profiling_name"] for e in apart["messages"]] == [title]
        assert [e["profiling_name"] for e in apart["entries"]] == ["gloo:all_reduce", "gloo:all_gather"]
        assert [e["profiling_name"] for e in together["entries"]] == ["gloo:all_reduce", title, "gloo:all_gather"]
        (message,) = apart["messages"]
        assert message["is_p2p"] and message["p2p_seq_id"] == 1 and message["state"] == "completed"
        assert message["input_sizes"] == [[3, 2]] and apart["entries"][1]["output_sizes"] == [[2, 1]]
        assert not any(e["is_p2p"] for e in apart["entries"])


def of_size(rank: int, world: int, variable: str, value: str) -> Any:
    os.environ[variable] = value
    start()
    for _ in range(20):
        summed(1)
    return ringcomm.flight_record.dump()["entries"]


def test_the_size_is_torchs_variable() -> None:
    entries = run_ranks(of_size, 2, "TORCH_FR_BUFFER_SIZE", "8")[0]
    assert [e["collective_seq_id"] for e in entries] == list(range(13, 21))
    assert [e["record_id"] for e in entries] == list(range(12, 20))
    assert run_ranks(of_size, 2, "TORCH_NCCL_TRACE_BUFFER_SIZE", "0") == [[], []]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TORCH_FR_BUFFER_SIZE", "-5", "0 to 1048576"),
        ("TORCH_FR_BUFFER_SIZE", "many", "0 to 1048576"),
        ("RINGCOMM_FLIGHT_RECORD", "/no/such/folder/fr_", "no folder '/no/such/folder'"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/no/such/folder/fr_", "no folder '/no/such/folder'"),
    ],
)
def test_what_cannot_be_done_is_refused(variable: str, value: str, words: str) -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(of_size, 1, variable, value)
    text = str(caught.value.errors[0])
    assert variable in text and repr(value) in text and words in text


def made_again(rank: int, world: int) -> Any:
    for length in (3, 4):
        start()
        summed(length)
        dist.destroy_process_group()
    return ringcomm.flight_record.dump()


def test_a_group_made_again_stands_for_its_predecessor() -> None:
    """Same name, numbers from 1 again: the analyser would take the old calls for the new ones."""
    for found in run_ranks(made_again, 2):
        assert [e["input_sizes"] for e in found["entries"]] == [[[4]]]


def on_a_signal(rank: int, world: int, prefix: str) -> None:
    """The lines of docs/hangs.md, while the main thread waits in a collective."""
    signal.signal(signal.SIGUSR1, lambda *_: ringcomm.flight_record.dump(prefix))
    store = start()
    summed(1)
    if rank == 1:
        store.wait(["written"], timedelta(seconds=60))
    else:
        threading.Thread(target=poke, args=(store, prefix)).start()
    summed(9)
    dist.destroy_process_group()


def poke(store: Store, prefix: str) -> None:
    """Once the main thread is in its wait, or just before it: the handler runs either way."""
    os.kill(os.getpid(), signal.SIGUSR1)
    wait_for_file(prefix + "0")
    store.set("written", "")


def test_a_signal_handler_may_write_it(tmp_path: Path) -> None:
    run_ranks(on_a_signal, 2, str(tmp_path / "fr_"))
    written = pickle.loads((tmp_path / "fr_0").read_bytes())
    assert written["entries"][0]["state"] == "completed"
