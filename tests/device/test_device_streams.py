"""What a Work promises about streams: who waits on the device, that the host does not, and whose memory is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import device_ranks
from device_checks import Env, N, begun, everywhere, expect, finish, late, used_again

pytestmark = pytest.mark.ci


def host_goes_on(rank: int, world: int) -> list[str]:
    device = begun(rank)
    wrong: list[str] = []
    ones = torch.ones(N, device=device)
    tensor = late(ones)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    if work.is_completed():
        wrong.append("the call is over while its input is not there")
    doubled = torch.empty_like(tensor)
    doubled.copy_(tensor)  # on the device, in the same stream
    device_ranks.native.open()
    expect(wrong, "the sum", doubled, 2.0)
    if not work.is_completed() or not work.is_success():
        wrong.append("the call is over and its work does not say so")
    return finish(wrong)


def test_wait_orders_the_stream_and_not_the_host(device_env: Env) -> None:
    everywhere(host_goes_on, device_env)


def other_streams(rank: int, world: int) -> list[str]:
    """Made on one stream, reduced from there, waited for on another one."""
    device = begun(rank)
    wrong: list[str] = []
    ones = torch.ones(N, device=device)
    torch.accelerator.synchronize()
    made_on, used_on = torch.Stream(device), torch.Stream(device)
    with made_on:
        tensor = late(ones)
        work = dist.all_reduce(tensor, async_op=True)
    with used_on:
        work.wait()
        seen = torch.empty_like(tensor)
        seen.copy_(tensor)
        device_ranks.native.open()
        expect(wrong, "the sum", seen, 2.0)
    return finish(wrong)


def test_calls_from_side_streams(device_env: Env) -> None:
    everywhere(other_streams, device_env)


def dropped(rank: int, world: int) -> list[str]:
    """Nobody keeps the input, and its memory is used again at once: it must not be before the call has read it."""
    device = begun(rank)
    wrong: list[str] = []
    ones, nines = torch.ones(N, device=device), torch.full((N,), 99.0, device=device)
    output, last = torch.zeros(2 * N, device=device), torch.ones(N, device=device)
    torch.accelerator.synchronize()
    with torch.Stream(device):
        before = late(ones)
        dist.all_reduce(before, async_op=True)
    with torch.Stream(device):
        given = torch.empty_like(ones).copy_(ones)
        dist.all_gather_into_tensor(output, given, async_op=True)  # the work is dropped too
        del given
        used_again(nines)
    dist.all_reduce(last, async_op=True).wait()
    device_ranks.native.open()
    expect(wrong, "what was gathered", output, 1.0)
    return finish(wrong)


def test_memory_of_tensors_that_are_dropped(device_env: Env) -> None:
    everywhere(dropped, device_env)


def dropped_elsewhere(rank: int, world: int) -> list[str]:
    """Waited for on another stream than the input's: that one may use the memory again only when the call is over."""
    device = begun(rank)
    wrong: list[str] = []
    ones, nines = torch.ones(N, device=device), torch.full((N,), 99.0, device=device)
    output = torch.zeros(2 * N, device=device)
    made_on, used_on = torch.Stream(device), torch.Stream(device)
    torch.accelerator.synchronize()
    before = dist.all_reduce(late(ones), async_op=True)  # the next call cannot begin
    with made_on:
        given = torch.empty_like(ones).copy_(ones)
        work = dist.all_gather_into_tensor(output, given, async_op=True)
    with used_on:
        work.wait()
    del given, work
    with made_on:
        used_again(nines)
    assert not before.is_completed()
    with used_on:
        seen = torch.empty_like(output).copy_(output)
        device_ranks.native.open()
        expect(wrong, "what was gathered", seen, 1.0)
    return finish(wrong)


def test_memory_of_tensors_that_are_waited_for_elsewhere(device_env: Env) -> None:
    everywhere(dropped_elsewhere, device_env)


def strided(rank: int, world: int) -> list[str]:
    """The call works in stand-ins, whose way back is part of it."""
    device = begun(rank)
    wrong: list[str] = []
    base = torch.zeros(N, 3, device=device)
    column = base[:, 1]
    device_ranks.native.delay(0.4)  # no more than a chance: copies with strides are the host's, which waits
    column.copy_(torch.ones(N, device=device))
    work = dist.all_reduce(column, async_op=True)
    work.wait()
    expect(wrong, "the column", column, 2.0)
    expect(wrong, "its neighbour", base[:, 2], 0.0)
    return finish(wrong)


def test_outputs_with_strides(device_env: Env) -> None:
    everywhere(strided, device_env)


def futures(rank: int, world: int) -> list[str]:
    device = begun(rank)
    wrong: list[str] = []
    ones = torch.ones(N, device=device)
    work = dist.all_reduce(late(ones), async_op=True)

    def copied(future: Any) -> torch.Tensor:
        (tensor,) = future.value()
        again = torch.empty_like(tensor)
        again.copy_(tensor)
        return again

    chained = work.get_future().then(copied)
    if work.is_completed():
        wrong.append("the call is over while its input is not there")
    device_ranks.native.open()
    expect(wrong, "what the callback saw", chained.wait(), 2.0)
    result = work.get_future_result()
    result.wait()
    if result.value() != 0:
        wrong.append(f"the result is {result.value()}, not success")
    return finish(wrong)


def test_callbacks_of_futures_come_behind_the_call(device_env: Env) -> None:
    everywhere(futures, device_env)


def limited(rank: int, world: int) -> list[str]:
    device = begun(rank)
    wrong: list[str] = []
    tensor = late(torch.ones(N, device=device))
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait(timedelta(milliseconds=20))
        wrong.append("a wait of 20 ms for what takes longer has come back")
    except RuntimeError as error:
        if " Timed out " not in str(error):
            wrong.append(str(error))
    device_ranks.native.open()
    work.wait(timedelta(seconds=60))
    if not work.is_completed():
        wrong.append("a wait with a limit came back before the end")
    expect(wrong, "the sum", tensor, 2.0)
    return finish(wrong)


def test_a_wait_with_a_limit_waits(device_env: Env) -> None:
    everywhere(limited, device_env)


def blocks(rank: int, world: int) -> list[str]:
    device = begun(rank)
    wrong: list[str] = []
    tensors = [torch.full((N,), float(k), device=device) for k in range(3)]
    with dist._coalescing_manager(device=device, async_ops=True) as block:
        for tensor in tensors:
            dist.all_reduce(tensor)
    block.wait()
    for k, tensor in enumerate(tensors):
        expect(wrong, f"tensor {k}", tensor, 2.0 * k)
    return finish(wrong)


def test_blocks_of_calls(device_env: Env) -> None:
    everywhere(blocks, device_env)


def block_futures(rank: int, world: int) -> list[str]:
    """What is chained to a block comes behind its calls, and its result is there when they are over."""
    device = begun(rank)
    wrong: list[str] = []
    ones = torch.ones(N, device=device)
    tensor = late(ones)
    group: Any = dist.group.WORLD
    group._start_coalescing(device)
    dist.broadcast(tensor, 0, async_op=True)
    block = group._end_coalescing(device)

    def copied(future: Any) -> torch.Tensor:
        (there,) = future.value()
        return torch.empty_like(there).copy_(there)

    chained = block.get_future().then(copied)
    result = block.get_future_result()
    if result.done():
        wrong.append("the result is there before the input is")
    device_ranks.native.open()
    expect(wrong, "what the callback saw", chained.wait(), 1.0)
    result.wait()
    if result.value() != 0:
        wrong.append(f"the result is {result.value()}, not success")
    return finish(wrong)


def test_futures_of_blocks(device_env: Env) -> None:
    everywhere(block_futures, device_env)


def blocked(rank: int, world: int) -> list[str]:
    device = begun(rank)
    wrong: list[str] = []
    ones = torch.ones(N, device=device)
    torch.accelerator.synchronize()
    tensor = late(ones)
    work = dist.all_reduce(tensor, async_op=True)
    with torch.Stream(device):
        work.block_current_stream()
        seen = torch.empty_like(tensor).copy_(tensor)
        if work.is_completed():
            wrong.append("the host was blocked")
        device_ranks.native.open()
        expect(wrong, "the sum", seen, 2.0)
    return finish(wrong)


def test_block_current_stream(device_env: Env) -> None:
    everywhere(blocked, device_env)


def many(rank: int, world: int) -> list[str]:
    """Calls overtake nobody: a chain of them, each with the result of the one before, none waited for by the host."""
    device = begun(rank)
    wrong: list[str] = []
    tensor = torch.ones(N, device=device)
    for _ in range(60):
        dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True).wait()
    dist.all_reduce(tensor)
    expect(wrong, "the sum", tensor, float(world))
    host = torch.ones(5)
    dist.all_reduce(host)  # the CPU's calls go on beside
    expect(wrong, "the host's sum", host, float(world))
    return finish(wrong)


def test_many_calls(device_env: Env) -> None:
    everywhere(many, device_env, 3)
