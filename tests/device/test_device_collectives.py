"""Collectives of tensors on the test device: the values of torch, and the bits of the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import collective_inputs
import device_ranks
from collective_checks import nothing_wrong
from collective_operations import OPERATIONS, ROOTED, Case, run_cases
from ranks import RankPool, run_ranks

Pools = Callable[..., RankPool]
pytestmark = pytest.mark.ci

Env = dict[str, "str | None"]
HALVES = (torch.float16, torch.bfloat16)


def run(rank: int, world: int, cases: list[Case], own_device: bool) -> list[str]:
    """Runs the cases with tensors on the device; the driver has nothing to note, and nothing is left of the group."""
    collective_inputs.place_on(device_ranks.init(rank, own_device))
    wrong = run_cases(rank, world, cases)
    waits, kernels = (device_ranks.native.calls(name) for name in ("cuStreamWaitValue32_v2", "cuLaunchKernel"))
    if world > 1 and (kernels == 0 or (waits > 0) == own_device):
        wrong.append(f"rank {rank}: {kernels} kernels, streams have waited {waits} times: that is another mode")
    dist.barrier()  # ranks meet at the end
    dist.destroy_process_group()
    wrong += device_ranks.native.misuse().splitlines()
    live = device_ranks.native.live()
    return wrong + [f"{live} is left"] * (live["imported"] + live["host"] > 0)


def every_operation(ranks: int) -> list[Case]:
    cases = [Case(name, shape=shape) for name in OPERATIONS for shape in ((7,), (5, 300))]
    cases += [Case(name, root=ranks - 1) for name in ROOTED]
    return cases


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_operation(ranks: int, device_env: Env) -> None:
    nothing_wrong(run_ranks(run, ranks, every_operation(ranks), False, env=device_env, timeout=200))


def test_every_operation_where_each_rank_has_a_device(device_env: Env) -> None:
    nothing_wrong(run_ranks(run, 2, every_operation(2), True, env=device_env, timeout=200))


def test_every_dtype_and_op(device_env: Env) -> None:
    cases = [
        Case("all_reduce", dtype, op)
        for dtype in (*collective_inputs.REDUCIBLE, *collective_inputs.COMPLEX)
        for op in collective_inputs.ops_of(dtype)
    ]
    cases += [Case("all_gather", dtype) for dtype in (*collective_inputs.MOVED_ONLY, *collective_inputs.RARE)]
    nothing_wrong(run_ranks(run, 2, cases, False, env=device_env, timeout=200))


def test_layouts_and_sizes(device_env: Env) -> None:
    names = [name for name in collective_inputs.layouts((2, 3, 4, 5)) if name != "contiguous"]
    cases = [Case(op, shape=(2, 3, 4, 5), layout=name) for op in ("all_reduce", "all_gather") for name in names]
    cases += [Case("all_reduce", shape=(size,)) for size in collective_inputs.SIZES]
    cases += [Case("reduce_scatter_tensor", torch.bfloat16, shape=(50_000,)), Case("broadcast", shape=(300_001,))]
    nothing_wrong(run_ranks(run, 2, cases, False, env=device_env, timeout=200))


def bits(rank: int, world: int, own_device: bool) -> list[str]:
    """Numbers whose sum depends on the order of additions: the device's result must have the CPU's bits."""
    device = device_ranks.init(rank, own_device)
    random = torch.Generator().manual_seed(rank)
    wrong = []
    for dtype in (torch.float32, torch.float64, *HALVES):
        for count in (3, 1000, 70_001):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT):
                host = torch.randn(count, generator=random, dtype=torch.float64).to(dtype)
                there = host.to(device)
                dist.all_reduce(host, op)
                dist.all_reduce(there, op)
                if not collective_inputs.same_bits(host, there):
                    wrong.append(f"rank {rank}: {dtype} {count} {op}")
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize("own_device", [False, True])
def test_sums_have_the_bits_of_the_cpu(own_device: bool, device_env: Env) -> None:
    nothing_wrong(run_ranks(bits, 3, own_device, env=device_env, timeout=200))


def refused(rank: int, world: int) -> list[str]:
    """What is not handled says so, before any rank waits for another."""
    device = device_ranks.init(rank)
    here, there = torch.ones(4), torch.ones(4, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "messages are for CPU tensors so far": lambda: dist.send(there, (rank + 1) % world),
        "a call has tensors on cpu and on": lambda: dist.all_to_all([here, there], [here.clone(), there.clone()]),
    }
    wrong = []
    for text, call in calls.items():
        try:
            call()
            wrong.append(f"no error: {text}")
        except (ValueError, RuntimeError) as error:
            if text not in str(error):
                wrong.append(f"{text!r} is not in {error}")
    dist.all_reduce(there)
    wrong += [] if there.cpu().tolist() == [float(world)] * 4 else ["the group does not work any more"]
    dist.destroy_process_group()
    return wrong


def test_what_is_refused(device_env: Env) -> None:
    nothing_wrong(run_ranks(refused, 2, env=device_env, timeout=100))


def overlapping(rank: int, world: int) -> list[str]:
    """Parts that begin at the same place, which outputs write over."""
    device = device_ranks.init(rank)
    memory = (torch.arange(10.0) + 100 * rank).to(device)
    size = 2 + 3 * rank
    outputs = [memory[:size], memory[size : 2 * size]]
    dist.all_to_all(outputs, [memory[:2], memory[:5]])
    wrong = [
        f"rank {rank}: from rank {r} came {got.tolist()}"
        for r, got in enumerate(outputs)
        if got.cpu().tolist() != [100.0 * r + k for k in range(size)]
    ]
    dist.destroy_process_group()
    return wrong + device_ranks.native.misuse().splitlines()


def test_inputs_that_outputs_write_over(device_env: Env) -> None:
    nothing_wrong(run_ranks(overlapping, 2, env=device_env, timeout=100))
