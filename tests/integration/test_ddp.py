"""DistributedDataParallel and ZeRO over ringcomm train as one process does that sees all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks import RankPool

Pools = Callable[..., RankPool]
STEPS = 4


class Net(nn.Module):
    """Has a buffer (batch norm would couple samples, so a plain counter) and a branch that some steps leave out."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40)
        self.second = nn.Linear(40, 6)
        self.aside = nn.Linear(40, 6)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor, aside: bool = False) -> Tensor:
        self.seen.add_(1)
        hidden = self.first(x).relu()
        return self.aside(hidden) if aside else self.second(hidden)


def samples(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 12, generator=generator), torch.randn(8, 6, generator=generator)


def make_net(rank: int = 0) -> Net:
    torch.manual_seed(5 + rank)  # DDP must take rank 0's
    return Net()


def loss_of(model: nn.Module, step: int, rank: int, aside: bool) -> Tensor:
    x, y = samples(step, rank)
    return (model(x, aside) - y).square().mean()


def alone(world: int, asides: list[bool], accumulate: int = 1) -> list[Tensor]:
    """One process: the mean of the ranks' losses."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        sum((loss_of(net, step, rank, asides[step]) / world for rank in range(world)), torch.zeros(())).backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


def train(
    rank: int, world: int, asides: list[bool], hook: str | None = None, accumulate: int = 1, **kwargs: Any
) -> list[Tensor]:
    model = DDP(make_net(rank), **kwargs)
    if hook is not None:
        register(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        last = (step + 1) % accumulate == 0
        with torch.enable_grad() if last else model.no_sync():
            loss_of(model, step, rank, asides[step]).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def register(model: DDP, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "power":
        # Compresses from the second step on; a rank of 6 is that of the largest gradient here, so nothing is lost.
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=6, start_powerSGD_iter=2, min_compression_rate=0.1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, default_hooks.allreduce_hook)


def agree(results: list[list[Tensor]], wanted: list[Tensor], tolerance: float) -> None:
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0])), "ranks hold different parameters"
    for got, want in zip(results[0], wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


ALWAYS_SECOND = [False] * STEPS
ALTERNATING = [False, True] * (STEPS // 2)


@pytest.mark.parametrize(
    ("asides", "kwargs"),
    [
        (ALWAYS_SECOND, {"find_unused_parameters": True}),
        (ALTERNATING, {"find_unused_parameters": True}),
        (ALTERNATING, {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}),
        (ALWAYS_SECOND, {"static_graph": True}),
        (ALWAYS_SECOND, {"static_graph": True, "gradient_as_bucket_view": True}),
    ],
    ids=["unused", "alternating", "views in small buckets", "static", "static views"],
)
@pytest.mark.parametrize("world", [2, 3])
def test_trains_as_one_process(rank_pool: Pools, world: int, asides: list[bool], kwargs: dict[str, Any]) -> None:
    agree(rank_pool(world, backend="ringcomm").run(train, asides, **kwargs), alone(world, asides), 1e-5)


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "power"])
def test_comm_hooks(rank_pool: Pools, hook: str) -> None:
    results = rank_pool(2, backend="ringcomm").run(train, ALWAYS_SECOND, hook, find_unused_parameters=True)
    agree(results, alone(2, ALWAYS_SECOND), {"allreduce": 1e-5, "fp16": 2e-3, "power": 0.3}[hook])


def test_no_sync_accumulates(rank_pool: Pools) -> None:
    results = rank_pool(2, backend="ringcomm").run(train, ALWAYS_SECOND, accumulate=2, find_unused_parameters=True)
    agree(results, alone(2, ALWAYS_SECOND, accumulate=2), 1e-5)


def train_zero(rank: int, world: int) -> list[Tensor]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(make_net(rank), find_unused_parameters=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(STEPS):
        loss_of(model, step, rank, False).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.consolidate_state_dict(to=0)
    if rank == 0 and len(optimizer.state_dict()["state"]) == 0:
        raise AssertionError("the consolidated state is empty")
    return [p.detach().clone() for p in model.parameters()]


def test_zero_redundancy_optimizer(rank_pool: Pools) -> None:
    agree(rank_pool(3, backend="ringcomm").run(train_zero), alone(3, ALWAYS_SECOND), 1e-5)


def uneven_join(rank: int, world: int) -> int:
    """Ranks with fewer batches shadow the others' collectives."""
    from torch.distributed.algorithms.join import Join

    model = DDP(nn.Linear(4, 1))
    steps = 0
    with Join([model]):
        for _ in range(3 + 2 * rank):
            model(torch.ones(2, 4)).sum().backward()
            steps += 1
    dist.barrier()
    return steps


def test_join_with_uneven_batches(rank_pool: Pools) -> None:
    assert rank_pool(3, backend="ringcomm").run(uneven_join) == [3, 5, 7]
