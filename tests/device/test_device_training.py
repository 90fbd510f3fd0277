"""Training steps with DDP and FSDP2 on the test device: the very parameters that the same steps give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import device_ranks
from collective_inputs import same_bits
from ranks import run_ranks

pytestmark = pytest.mark.ci

Env = dict[str, "str | None"]
STEPS = 3


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(9, 33), nn.ReLU(), nn.Linear(33, 17), nn.ReLU(), nn.Linear(17, 4))


def train(wrapped: nn.Module, rank: int, device: torch.device) -> None:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        inputs, targets = torch.randn(6, 9, generator=random), torch.randn(6, 4, generator=random)
        loss = (wrapped(inputs.to(device)) - targets.to(device)).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ddp(rank: int, device: torch.device) -> list[Tensor]:
    wrapped = DistributedDataParallel(model().to(device), bucket_cap_mb=0.001)
    train(wrapped, rank, device)
    return list(wrapped.parameters())


def fsdp(rank: int, device: torch.device, **options: Any) -> list[Tensor]:
    made = model().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in made.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(made, mesh=mesh, **options)
    train(made, rank, device)
    return [p.full_tensor() for p in made.parameters()]  # type: ignore[attr-defined]


def mixed(rank: int, device: torch.device) -> list[Tensor]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp(rank, device, mp_policy=policy)


def both(rank: int, world: int, trained: Callable[[int, torch.device], list[Tensor]], own_device: bool) -> list[str]:
    device = device_ranks.init(rank, own_device)
    here, there = trained(rank, torch.device("cpu")), trained(rank, device)
    wrong = [
        f"rank {rank}: parameter {i} differs by {(a - b.cpu()).abs().max().item()}"
        for i, (a, b) in enumerate(zip(here, there, strict=True))
        if b.device != device or not same_bits(a.detach(), b.detach())
    ]
    dist.destroy_process_group()
    return wrong + device_ranks.native.misuse().splitlines()


@pytest.mark.parametrize("own_device", [False, True])
@pytest.mark.parametrize("trained", [ddp, fsdp, mixed])
def test_steps_give_the_bits_of_the_cpu(
    trained: Callable[[int, torch.device], list[Tensor]], own_device: bool, device_env: Env
) -> None:
    wrong = [line for lines in run_ranks(both, 2, trained, own_device, env=device_env, timeout=200) for line in lines]
    assert not wrong, "\n".join(wrong)
