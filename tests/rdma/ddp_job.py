"""An ordinary DDP job, one process a node, over what ringcomm finds by itself; writes what came out to $OUT.

By hand: `scripts/rdma_lab run --vms 2 --out FOLDER -- python tests/rdma/ddp_job.py`.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import ringcomm  # noqa: E402, F401 - registers the backend where the package is not installed
from rdma_lab_ctl import counters  # noqa: E402

STEPS = 5
BUCKET_MB = 1


def network() -> nn.Module:
    """301 066 parameters: 1.2 MB of gradients a step, in two buckets."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def backward(model: nn.Module, step: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator)
    nn.functional.cross_entropy(model(x), y).backward()


def values(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def alone(world: int) -> list[torch.Tensor]:
    """The same training in one process, by the mean of all ranks' gradients."""
    model = network()
    descent = optimizer(model)
    for step in range(STEPS):
        for rank in range(world):
            backward(model, step, rank)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= world
        descent.step()
        descent.zero_grad()
    return values(model)


def sent() -> dict[str, int]:
    """What this node has sent so far: bytes by TCP and by its RDMA interface, packets by its device's own count."""
    device = counters(int(os.environ["NODE_RANK"]))
    tcp = int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())
    return {"tcp": tcp, "rdma": device["tx_bytes"], "packets": device["sent_pkts"]}


def furthest(these: list[torch.Tensor], those: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(these, those, strict=True))


def main() -> None:
    os.environ.update(RANK=os.environ["NODE_RANK"], WORLD_SIZE=os.environ["NNODES"])
    torch.set_num_threads(1)
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=300))
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    descent = optimizer(model)
    dist.barrier()
    before = sent()
    for step in range(STEPS):
        backward(model, step, rank)
        descent.step()
        descent.zero_grad()
    dist.barrier()
    after = sent()
    mine = values(model)
    last = [parameter.clone() for parameter in mine]
    for parameter in last:
        dist.broadcast(parameter, world - 1)
    dist.barrier()
    dist.destroy_process_group()
    result = {
        "parameters": sum(parameter.numel() for parameter in mine),
        "from the last rank's": furthest(mine, last),
        "from one process's": furthest(mine, alone(world)),
        "from the first": furthest(mine, values(network())),
        "sent": {what: after[what] - before[what] for what in after},
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }
    print(json.dumps(result), flush=True)
    Path(os.environ["OUT"], "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
