"""Object collectives, pipelines and checkpoints: what is built from small collectives and messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks import RankPool

Pools = Callable[..., RankPool]


def thing(rank: int) -> dict[str, Any]:
    """Of another pickled size on each rank."""
    return {"rank": rank, "text": "x" * 1000 * rank, "tensor": torch.full((rank,), float(rank))}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a["rank"] == b["rank"] and a["text"] == b["text"] and torch.equal(a["tensor"], b["tensor"])


def objects(rank: int, world: int) -> list[str]:
    wrong = []
    everyone = [thing(r) for r in range(world)]

    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, thing(rank))
    if not all(map(same, gathered, everyone)):
        wrong.append("all_gather_object")

    at_root: list[Any] | None = [None] * world if rank == world - 1 else None
    dist.gather_object(thing(rank), at_root, world - 1)
    if at_root is not None and not all(map(same, at_root, everyone)):
        wrong.append("gather_object")

    sent: list[Any] = [thing(world), "two", 3] if rank == 0 else [None] * 3
    dist.broadcast_object_list(sent, 0)
    if not same(sent[0], thing(world)) or sent[1:] != ["two", 3]:
        wrong.append("broadcast_object_list")

    mine: list[Any] = [None]
    dist.scatter_object_list(mine, everyone if rank == 0 else None, 0)
    if not same(mine[0], thing(rank)):
        wrong.append("scatter_object_list")

    if world > 1 and rank < 2:
        passed: list[Any] = [thing(3)] if rank == 0 else [None]
        (dist.send_object_list if rank == 0 else dist.recv_object_list)(passed, 1 - rank)
        if not same(passed[0], thing(3)):
            wrong.append("send_object_list")
    return [f"rank {rank}: {line}" for line in wrong]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_objects(rank_pool: Pools, world: int) -> None:
    assert rank_pool(world, backend="ringcomm").run(objects) == [[]] * world


def pipeline(rank: int, world: int, kind: str) -> list[Tensor] | None:
    from torch.distributed import pipelining

    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(world)]
    stage = pipelining.PipelineStage(layers[rank], rank, world, torch.device("cpu"))
    schedule = getattr(pipelining, kind)(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    torch.manual_seed(9)
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        schedule.step(target=y)
    else:
        schedule.step()
    return [p.grad for p in layers[rank].parameters() if p.grad is not None]


def alone(world: int) -> list[list[Tensor]]:
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(world)]
    torch.manual_seed(9)
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    nn.MSELoss()(nn.Sequential(*layers)(x), y).backward()
    return [[p.grad for p in layer.parameters() if p.grad is not None] for layer in layers]


@pytest.mark.parametrize("kind", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize("world", [2, 3])
def test_pipeline_gradients(rank_pool: Pools, world: int, kind: str) -> None:
    results = rank_pool(world, backend="ringcomm").run(pipeline, kind, timeout=120)
    for got, wanted in zip(results, alone(world), strict=True):
        assert len(got) == len(wanted) == 2
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def checkpoint(rank: int, world: int, folder: str) -> bool:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(20.0).reshape(10, 2)
    dcp.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder)
    loaded = {"weight": distribute_tensor(torch.zeros(10, 2), mesh, [Shard(1)])}
    dcp.load(loaded, checkpoint_id=folder)
    return torch.equal(loaded["weight"].full_tensor(), whole)


def test_distributed_checkpoint(rank_pool: Pools, tmp_path: Path) -> None:
    assert rank_pool(2, backend="ringcomm").run(checkpoint, str(tmp_path / "saved"), timeout=120) == [True, True]
