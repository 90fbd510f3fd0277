"""What torch's profiler sees: one titled range per operation, and record_param_comms with what trace tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from ranks import run_ranks

Event = dict[str, Any]


def start() -> None:
    dist.init_process_group("ringcomm")


def traced(body: Any, path: Path) -> list[Event]:
    """The events of a Kineto trace of body()."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        body()
    profiler.export_chrome_trace(str(path))
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def comms(events: list[Event]) -> list[Event]:
    """Arguments of each record_param_comms, in order."""
    found = [e for e in events if e.get("name") == "record_param_comms"]
    return [e["args"] for e in sorted(found, key=lambda e: float(e["ts"]))]


def ddp(rank: int, world: int, folder: str) -> list[Event]:
    torch.manual_seed(0)
    start()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 7))

    def step() -> None:
        model(torch.ones(2, 30)).sum().backward()

    step()
    step()  # DDP puts its buckets in order once, with a broadcast
    events = traced(step, Path(folder) / f"trace{rank}.json")
    dist.destroy_process_group()
    return events


def test_a_ddp_step_carries_its_bucket(tmp_path: Path) -> None:
    for events in run_ranks(ddp, 2, str(tmp_path)):
        (bucket,) = comms(events)
        expected = {
            "Collective name": "allreduce",
            "In msg nelems": 30 * 7 + 7,
            "Out msg nelems": 30 * 7 + 7,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
        }
        assert {key: bucket.get(key) for key in expected} == expected
        (title,) = [e for e in events if e.get("name") == "ringcomm:all_reduce"]
        assert title["args"]["Input Dims"] == [[217]]


def others(rank: int, world: int, folder: str) -> list[Event]:
    start()
    evens = dist.new_group([0, 2], group_desc="evens")

    def body() -> None:
        dist.broadcast(torch.ones(5), 2)
        dist.all_gather_into_tensor(torch.empty(6, dtype=torch.int32), torch.ones(2, dtype=torch.int32))
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(6))
        dist.all_to_all_single(torch.empty(3), torch.ones(3))
        dist.all_to_all_single(torch.empty(2 * world), torch.ones(2 * world), [2] * world, [2] * world)
        dist.barrier()
        if rank == 0:
            dist.send(torch.ones(4), 1, tag=3)
            dist.all_reduce(torch.ones(1), group=evens)
        elif rank == 1:
            dist.recv(torch.ones(4), 0, tag=3)
        else:
            dist.all_reduce(torch.ones(1), group=evens)

    events = traced(body, Path(folder) / f"trace{rank}.json")
    dist.destroy_process_group()
    return events


def test_names_sizes_and_splits_are_what_trace_tools_know(tmp_path: Path) -> None:
    results = run_ranks(others, 3, str(tmp_path))
    shown = [(c["Collective name"], c["In msg nelems"], c["Out msg nelems"], c["dtype"]) for c in comms(results[0])]
    assert shown == [
        ("broadcast", 5, 5, "Float"),
        ("_allgather_base", 2, 6, "Int"),
        ("_reduce_scatter_base", 6, 2, "Float"),
        ("all_to_all", 3, 3, "Float"),
        ("all_to_allv", 6, 6, "Float"),
        ("barrier", 0, 0, "Byte"),
        ("send", 4, 4, "Float"),
        ("allreduce", 1, 1, "Float"),
    ]
    found = comms(results[0])
    assert found[4]["In split size"] == found[4]["Out split size"] == "[2, 2, 2]" and found[3]["In split size"] == "[]"
    assert [c["Rank"] for c in found[:2]] == [2, 0]  # the root, else oneself
    assert [c["Seq"] for c in found[:6]] == [1, 2, 3, 4, 5, 6]
    assert found[7]["Process Group Ranks"] == "[0, 2]" and found[7]["Process Group Description"] == "evens"
    titles = [e["name"] for e in results[1] if str(e.get("name", "")).startswith("ringcomm:")]
    assert sorted(titles) == sorted(
        [f"ringcomm:{name}" for name in ("broadcast", "all_gather", "reduce_scatter", "barrier", "recv")]
        + ["ringcomm:all_to_all"] * 2
    )
