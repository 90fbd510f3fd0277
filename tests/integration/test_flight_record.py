"""The flight record: what it holds, its size, its format, and the ways to get at it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringcomm
from flight_files import Store, start, summed, wait_for_file
from ranks import RankError, run_ranks


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
