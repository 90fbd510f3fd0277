"""FSDP1, FSDP2 and hybrid sharding over ringcomm train as one process does that sees all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks import RankPool

Pools = Callable[..., RankPool]
STEPS = 3


def make_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 33), nn.GELU(), nn.Linear(33, 17), nn.LayerNorm(17), nn.Linear(17, 4))


def loss_of(model: nn.Module, step: int, rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(6, 10, generator=generator), torch.randn(6, 4, generator=generator)
    return (model(x.to(dtype)).float() - y).square().mean()


def alone(world: int) -> dict[str, Tensor]:
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for step in range(STEPS):
        sum((loss_of(net, step, rank) / world for rank in range(world)), torch.zeros(())).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in net.named_parameters()}


def steps(model: nn.Module, rank: int, dtype: torch.dtype = torch.float32) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(STEPS):
        loss_of(model, step, rank, dtype).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_fsdp2(
    rank: int, world: int, mesh_shape: tuple[int, ...], dtype: torch.dtype, factor: float | None
) -> dict[str, Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = ("replicate", "shard")[-len(mesh_shape) :]
    kwargs: dict[str, Any] = {"mesh": init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)}
    if dtype != torch.float32:
        kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = make_net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **kwargs)
    fully_shard(model, **kwargs)
    if factor is not None:
        sharded: list[Any] = [model, *(m for m in model if isinstance(m, nn.Linear))]
        for module in sharded:
            module.set_gradient_divide_factor(factor)
    steps(model, rank)
    return {name: whole(p).detach() for name, p in model.named_parameters()}


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor()  # type: ignore[no-any-return]


def train_fsdp1(rank: int, world: int, strategy: str) -> dict[str, Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FSDP(
        make_net(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        sharding_strategy=getattr(ShardingStrategy, strategy),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    steps(model, rank)
    with FSDP.summon_full_params(model):
        return {clean(name): p.detach().clone() for name, p in model.named_parameters()}


def clean(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "")


def agree(results: list[dict[str, Tensor]], wanted: dict[str, Tensor], tolerance: float) -> None:
    for result in results:
        assert result.keys() == wanted.keys()
        for name, want in wanted.items():
            assert torch.equal(result[name], results[0][name]), f"ranks hold different {name}"
            torch.testing.assert_close(result[name], want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("world", "mesh"),
    [(2, (2,)), (3, (3,)), pytest.param(4, (2, 2), marks=pytest.mark.ci)],
    ids=["2", "3", "2 x 2 hybrid"],
)
def test_fully_shard(rank_pool: Pools, world: int, mesh: tuple[int, ...]) -> None:
    results = rank_pool(world, backend="ringcomm").run(train_fsdp2, mesh, torch.float32, None, timeout=120)
    agree(results, alone(world), 1e-4)


def test_fully_shard_with_bfloat16_parameters(rank_pool: Pools) -> None:
    # Parameters have 8 bits here, so AdamW's steps of 0.01 may differ by a fraction of themselves.
    agree(rank_pool(2, backend="ringcomm").run(train_fsdp2, (2,), torch.bfloat16, None, timeout=120), alone(2), 0.03)


def test_fully_shard_with_a_divide_factor_uses_a_premultiplied_sum(rank_pool: Pools) -> None:
    # AdamW does not see a constant factor on the gradients (but for its epsilon), so the divisor 4 trains as 2 does.
    agree(rank_pool(2, backend="ringcomm").run(train_fsdp2, (2,), torch.float32, 4.0, timeout=120), alone(2), 1e-3)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1(rank_pool: Pools, strategy: str) -> None:
    agree(rank_pool(2, backend="ringcomm").run(train_fsdp1, strategy, timeout=120), alone(2), 1e-4)


def premultiplied_gradients(rank: int, world: int) -> list[float]:
    """The factor itself, which an adaptive optimizer would hide."""
    from torch.distributed.fsdp import fully_shard

    model: Any = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    fully_shard(model)
    model.set_gradient_divide_factor(8.0)
    model(torch.full((1, 4), float(rank + 1))).sum().backward()
    return whole(model.weight.grad).flatten().tolist()


def test_the_divide_factor_divides(rank_pool: Pools) -> None:
    assert rank_pool(3, backend="ringcomm").run(premultiplied_gradients, timeout=120) == [[6.0 / 8.0] * 16] * 3


def tensor_parallel(rank: int, world: int) -> float:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    wanted = model(x)
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    got = model(x)
    dist.barrier()
    return (got - wanted).abs().max().item()


def test_tensor_parallel(rank_pool: Pools) -> None:
    assert max(rank_pool(2, backend="ringcomm").run(tensor_parallel, timeout=120)) < 1e-5
