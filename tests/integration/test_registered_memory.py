"""What users do with registered memory: make tensors, hit the limit, fork, train DDP and FSDP in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import ringcomm
from ranks import RankPool, run_ranks

Pools = Callable[..., RankPool]
MIB = 1 << 20


def test_tensors_are_ordinary_ones() -> None:
    before = ringcomm.registered_bytes()
    for made, shape in (
        (ringcomm.empty(2, 3), (2, 3)),
        (ringcomm.empty((4, 5)), (4, 5)),
        (ringcomm.empty(np.int64(3)), (3,)),
        (ringcomm.empty([np.int64(3), 2]), (3, 2)),
        (ringcomm.empty(torch.Size([0, 2])), (0, 2)),
        (ringcomm.empty(()), ()),
    ):
        assert made.shape == shape and made.dtype == torch.float32 and made.is_contiguous()
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        ringcomm.empty([2.5])
    x = ringcomm.empty(1000, dtype=torch.int64)
    x.copy_(torch.arange(1000))
    assert x.dtype == torch.int64 and x.sum() == 499_500
    assert ringcomm.is_registered(x) and ringcomm.is_registered(x[500:].view(2, 250))
    assert not ringcomm.is_registered(x.clone()) and not ringcomm.is_registered(torch.ones(3))
    like = ringcomm.empty_like(torch.ones(3, 4, dtype=torch.bfloat16).t())
    assert like.shape == (4, 3) and like.dtype == torch.bfloat16 and ringcomm.is_registered(like)
    assert ringcomm.registered_bytes() == before + 4 * 4096  # pages: x has two; the last of the loop is held too
    del x, like, made
    assert ringcomm.registered_bytes() == before
    for negative in (-1, (2, -3)):
        with pytest.raises(RuntimeError, match="negative"):
            ringcomm.empty(negative)


def over_the_limit(rank: int, world: int) -> list[str]:
    dist.init_process_group("ringcomm")
    texts = []
    kept = [ringcomm.empty(MIB, dtype=torch.uint8) for _ in range(6)]
    for size in (3 * MIB, 1 << 50):
        try:
            ringcomm.empty(size, dtype=torch.uint8)
        except torch.OutOfMemoryError as error:
            texts.append(str(error))
    del kept[0]
    again = ringcomm.empty(2 * MIB, dtype=torch.uint8)  # the call fails, not the process; and what was freed is there
    dist.all_reduce(again.fill_(1))
    assert again.sum() == 2 * MIB * world
    dist.destroy_process_group()
    return texts


def test_running_out_is_an_error_that_names_bytes_limit_and_key() -> None:
    for texts in run_ranks(over_the_limit, 2, env={"RINGCOMM_MEMORY_REGISTERED": "8MiB"}):
        assert len(texts) == 2
        for wanted, text in zip((3 * MIB, 1 << 50), texts, strict=True):
            assert str(wanted) in text and str(8 * MIB) in text and "memory.registered" in text


def without_any(rank: int, world: int) -> str:
    dist.init_process_group("ringcomm")
    dist.all_reduce(torch.ones(1 << 18))
    dist.destroy_process_group()
    try:
        ringcomm.empty(1)
    except torch.OutOfMemoryError as error:
        return str(error)
    return "was given"


def test_it_can_be_switched_off() -> None:
    for text in run_ranks(without_any, 2, env={"RINGCOMM_MEMORY_REGISTERED": "0"}):
        assert "memory.registered" in text


def fork_holding(rank: int, world: int) -> tuple[int, float, bool]:
    dist.init_process_group("ringcomm")
    x = ringcomm.empty(50_000).fill_(2.0)
    ringcomm.use_registered_memory("64KiB")
    child = os.fork()
    if child == 0:  # as a data loader's worker: reads, allocates, frees
        good = bool((x == 2.0).all()) and not ringcomm.is_registered(x)
        own = torch.ones(100_000)  # torch's own memory: this process has no peers
        good = good and not ringcomm.is_registered(own)
        del x, own
        apart = ringcomm.empty(70_000).fill_(5.0)  # a heap of its own
        good = good and ringcomm.is_registered(apart)
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    registered = ringcomm.is_registered(torch.ones(100_000))
    y = ringcomm.empty(70_000).fill_(3.0)
    dist.all_reduce(x)
    dist.all_reduce(y)
    dist.destroy_process_group()
    return status, x.mean().item() + y.mean().item(), registered


def test_a_forked_child_reads_what_it_inherited_and_disturbs_nothing() -> None:
    assert run_ranks(fork_holding, 2) == [(0, 10.0, True)] * 2


@contextmanager
def served_from(min_bytes: str | None) -> Iterator[None]:
    ringcomm.use_registered_memory(min_bytes)
    try:
        yield
    finally:
        ringcomm.use_registered_memory(None)


def make_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 200), nn.GELU(), nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 8))


def train(model: nn.Module, rank: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(3):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(rank: int, world: int, min_bytes: str | None) -> tuple[list[Tensor], int]:
    before = ringcomm.registered_bytes()
    with served_from(min_bytes):
        model = DDP(make_net(), gradient_as_bucket_view=True)
        train(model, rank)
        used = ringcomm.registered_bytes() - before
    return [p.detach().clone() for p in model.parameters()], used


def test_ddp_with_registered_buckets_trains_to_the_same_bits(rank_pool: Pools) -> None:
    pool = rank_pool(2, backend="ringcomm")
    plain, registered = pool.run(ddp, None, timeout=120), pool.run(ddp, "32KiB", timeout=120)
    for (a, none), (b, some) in zip(plain, registered, strict=True):
        assert none == 0 and some >= 200 * 200 * 4
        assert all(map(torch.equal, a, b))


def fsdp2(rank: int, world: int, from_group: bool) -> tuple[list[Tensor], int]:
    from torch.distributed.fsdp import fully_shard

    model: Any = make_net()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    sizes = []
    if from_group:
        for module in (model, *(m for m in model if isinstance(m, nn.Linear))):
            module.set_allocate_memory_from_process_group_for_comm(True)
        model[2].register_forward_hook(lambda *_: sizes.append(ringcomm.registered_bytes()))
    train(model, rank)
    return [p.full_tensor().detach() for p in model.parameters()], max(sizes, default=0)


def test_fsdp2_takes_its_buffers_from_the_group_and_trains_to_the_same_bits(rank_pool: Pools) -> None:
    pool = rank_pool(2, backend="ringcomm")
    plain, registered = pool.run(fsdp2, False, timeout=120), pool.run(fsdp2, True, timeout=120)
    for (a, _), (b, used) in zip(plain, registered, strict=True):
        assert used > 0
        assert all(map(torch.equal, a, b))


def backend_hooks(rank: int, world: int) -> tuple[bool, bool, str]:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    tensor = backend.allocate_tensor(10, dtype=torch.float64, device=torch.device("cpu"))
    try:
        backend.allocate_tensor(-1, dtype=torch.float64, device=torch.device("cpu"))
    except ValueError as error:
        refused = str(error)
    return backend.supports_tensor_alloc(torch.device("cpu")), ringcomm.is_registered(tensor), refused


def test_the_backend_allocates(rank_pool: Pools) -> None:
    for supported, registered, refused in rank_pool(2, backend="ringcomm").run(backend_hooks):
        assert supported and registered and "size is -1" in refused


def torch_memory(rank: int, world: int) -> list[bool]:
    """Large memory is registered, also where a storage grows; what was torch's is freed as torch's, and the reverse."""
    early = torch.ones(1 << 18)
    ringcomm.use_registered_memory("1MiB")
    large, small = torch.ones(1 << 18), torch.ones(1 << 10)
    grown = torch.ones(4)
    grown.resize_(1 << 19)
    found = [ringcomm.is_registered(t) for t in (early, large, small, grown)]
    ringcomm.use_registered_memory(None)
    found.append(ringcomm.is_registered(torch.ones(1 << 18)))
    large.resize_(1 << 20)
    assert large[: 1 << 18].sum() == 1 << 18
    del early, large, small, grown
    return found


def test_one_line_registers_torchs_large_memory() -> None:
    assert run_ranks(torch_memory, 1) == [[False, True, False, True, False]]


def too_little_room(rank: int, world: int, log: str) -> tuple[bool, bool, bool]:
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 2)
    ringcomm.use_registered_memory("1MiB")
    first, second, third = (torch.ones(3 * MIB // 4) for _ in range(3))
    return ringcomm.is_registered(first), ringcomm.is_registered(second), ringcomm.is_registered(third)


def test_what_finds_no_room_is_torchs_own_and_that_is_said_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env: dict[str, str | None] = {"RINGCOMM_MEMORY_REGISTERED": "4MiB"}
    assert run_ranks(too_little_room, 1, str(log), env=env) == [(True, False, False)]
    assert log.read_text().count("raise memory.registered") == 1


def test_a_size_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ringcomm.ConfigError, match="min_bytes='1 parsec'"):
        ringcomm.use_registered_memory("1 parsec")
