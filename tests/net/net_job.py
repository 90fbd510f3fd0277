"""An ordinary torch.distributed job, run by torchrun on two hosts: trains with DDP, gathers, writes what came out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

with contextlib.suppress(ImportError):
    import ringcomm  # noqa: F401 - registers the backend where the package is not installed


def train(steps: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x, y = torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group(os.environ["JOB_BACKEND"])
    rank, world = dist.get_rank(), dist.get_world_size()
    parameters = train(5)
    same = [torch.empty_like(p) for p in parameters]
    for mine, copy in zip(parameters, same, strict=True):
        copy.copy_(mine)
        dist.broadcast(copy, world - 1)
    names: list[object] = [None] * world
    dist.all_gather_object(names, [os.uname().nodename, os.getpid(), int(os.environ["LOCAL_RANK"])])
    dist.barrier()
    dist.destroy_process_group()
    torch.save(parameters, folder / f"parameters-{rank}.pt")
    agree = all(torch.equal(a, b) for a, b in zip(parameters, same, strict=True))
    (folder / f"result-{rank}.json").write_text(json.dumps({"names": names, "agree": agree}))


if __name__ == "__main__":
    main()
