"""One rank of `scripts/performance --net`: times contenders in turns, each in a group of its own, and checks values.

Started on a host of the lab with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The default group is gloo's and carries
nothing that is measured. The only argument is a JSON file (`performance_net.Sweep`, and `out`, which rank 0 writes).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringcomm  # noqa: F401 - registers the backend where the package is not installed
from net_stream import PIECE, Stream

STREAM_PORT = 29499
WAIT = timedelta(seconds=120)
Body = Callable[[], None]


def slowest(value: float) -> float:
    x = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return float(x.item())


def calls(op: str, nbytes: int, group: Any) -> tuple[Body, Callable[[], bool]]:
    """The call, of `nbytes` float32 in all, and whether its result, called once on fresh inputs, is right."""
    rank, world = dist.get_rank(), dist.get_world_size()
    count = max(nbytes // 4, 1)
    each = max(count // world, 1)
    whole, part = torch.empty(count if op in ("all_reduce", "broadcast") else each * world), torch.empty(each)
    pattern = torch.arange(count).remainder(251).float()

    if op == "all_reduce":
        body: Body = partial(dist.all_reduce, whole, group=group)
    elif op == "broadcast":
        body = partial(dist.broadcast, whole, 0, group=group)
    elif op == "all_gather":
        body = partial(dist.all_gather_into_tensor, whole, part, group=group)
    else:
        body = partial(dist.reduce_scatter_tensor, part, whole, group=group)

    def right() -> bool:
        total = world * (world + 1) / 2
        whole.copy_((pattern * (rank + 1))[: len(whole)] if op != "all_gather" else torch.zeros(len(whole)))
        part.fill_(float(rank + 1) if op == "all_gather" else 0.0)
        body()
        if op == "all_reduce":
            good = torch.equal(whole, pattern * total)
        elif op == "broadcast":
            good = torch.equal(whole, pattern)
        elif op == "all_gather":
            good = torch.equal(whole.view(world, each), torch.arange(1.0, world + 1)[:, None].expand(world, each))
        else:
            good = torch.equal(part, pattern[rank * each : (rank + 1) * each] * total)
        whole.zero_()  # so that repeated sums stay finite
        return slowest(float(not good)) == 0.0

    return body, right


def seconds(body: Body, count: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        body()
    return slowest(time.perf_counter() - begin) / count


def sent() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def measure(job: dict[str, Any], groups: dict[str, Any], stream: Stream | None, op: str, nbytes: int) -> dict[str, Any]:
    """One row: seconds per call by contender and round; `wire`: bytes that left this host per call."""
    bodies: dict[str, Body] = {}
    for name, group in groups.items():
        bodies[name], right = calls(op, nbytes, group)
        if not right():
            raise ValueError(f"{name}: wrong values in {op} of {nbytes} bytes")
    counts = {name: max(1, min(2000, int(job["slice"] / seconds(body, 2)))) for name, body in bodies.items()}
    row: dict[str, Any] = {
        "op": op,
        "bytes": nbytes,
        "seconds": {n: [] for n in bodies},
        "wire": {n: [] for n in bodies},
    }
    pieces = max(1, int(job["slice"] * job["bytes_per_second"] / PIECE))
    for kind in ("stream", "stream both ways") if job["stream"] else ():
        row["seconds"][kind], row["wire"][kind] = [], []
    for _ in range(job["rounds"]):
        for name, body in bodies.items():
            before = sent()
            row["seconds"][name].append(seconds(body, counts[name]))
            row["wire"][name].append((sent() - before) / counts[name])
        for kind in ("stream", "stream both ways") if job["stream"] else ():
            dist.barrier()
            before = sent()
            took = stream.carry(pieces, "both" in kind) if stream else 0.0
            row["seconds"][kind].append(slowest(took) / pieces * nbytes / PIECE)
            row["wire"][kind].append((sent() - before) / pieces * nbytes / PIECE)
    return row


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=WAIT)
    rank, each = dist.get_rank(), dist.get_world_size() // job["hosts"]
    stream = None
    if job["stream"] and rank in (0, each):  # the first rank of each of the first two hosts
        stream = Stream(os.environ["MASTER_ADDR"], STREAM_PORT, accepts=rank == 0)
    groups = {}
    for name, rule in job["contenders"].items():
        # Hosts of the lab share their cores: where others run too a packet may wait for longer than the usual 3 s.
        options = {"tcp": {"dead_after": "30s"}, **({"policy": {op: [rule] for op in job["ops"]}} if rule else {})}
        backend = "gloo" if name == "gloo" else "ringcomm"
        groups[name] = dist.new_group(backend=backend, timeout=WAIT, pg_options=options if backend != "gloo" else None)
    rows = []
    for op in job["ops"]:
        for nbytes in job["sizes"]:
            rows.append(measure(job, groups, stream, op, nbytes))
            if rank == 0:
                print(
                    f"{op} {nbytes}: "
                    + ", ".join(f"{n} {1e6 * min(s):.0f} us" for n, s in rows[-1]["seconds"].items()),
                    flush=True,
                )
    if rank == 0:
        Path(job["out"]).write_text(json.dumps(rows))
    dist.barrier()
    if stream:
        stream.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
