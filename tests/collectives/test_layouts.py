"""Any strides in, right answer out: views of larger tensors, with nothing written around them, and shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collective_checks import RANKS, Pools, check, nothing_wrong
from collective_inputs import same_bits, values
from collective_operations import MOVING, REDUCING, Case

SHAPES = {
    "offset": (11,),
    "column": (5, 2),
    "every third": (4, 3),
    "transposed": (6, 4),
    "channels_last": (2, 3, 4, 5),
}


@pytest.mark.parametrize("operation", [*REDUCING, *MOVING])
@pytest.mark.parametrize("world", RANKS)
def test_strided_tensors(rank_pool: Pools, world: int, operation: str) -> None:
    cases = [
        Case(operation, dtype, shape=(shape[0] * scale, *shape[1:]), layout=layout, root=world - 1)
        for layout, shape in SHAPES.items()
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool)
        for scale in (1, 300)
        if dims_allow(operation, layout)
    ]
    check(rank_pool(world, backend="ringcomm"), cases)


def dims_allow(operation: str, layout: str) -> bool:
    """These operations also make tensors with a dim more or less than the case's shape."""
    changes_dims = operation in ("all_reduce_coalesced", "all_gather_coalesced", "all_to_all")
    return not (changes_dims and layout in ("transposed", "channels_last"))


def complex_and_conjugated(rank: int, world: int) -> list[str]:
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    mine = values(rank, 3, (6,), torch.complex64)
    summed = sum((values(r, 3, (6,), torch.complex64) for r in range(world)), torch.zeros(6, dtype=torch.complex64))
    wrong = []
    for name, given in {"plain": mine.clone(), "lazy conjugate": mine.conj().clone().conj()}.items():
        backend.allreduce([given]).wait()  # torch.distributed refuses lazy conjugates, functional collectives do not
        if not torch.equal(given, summed):
            wrong.append(f"rank {rank}: {name}: {given} should be {summed}")
    gathered = [torch.empty(6, dtype=torch.complex64) for _ in range(world)]
    backend.allgather([gathered], [mine.conj()]).wait()
    wanted = [values(r, 3, (6,), torch.complex64).conj().resolve_conj() for r in range(world)]
    if not all(map(torch.equal, gathered, wanted)):
        wrong.append(f"rank {rank}: all_gather of a lazy conjugate: {gathered}")
    return wrong


def test_complex_numbers_sum_and_lazy_conjugates_are_resolved(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(3, backend="ringcomm").run(complex_and_conjugated))


def expanded(rank: int, world: int) -> list[str]:
    """An expanded tensor may be an input; as an output it is refused, on all ranks alike, and the group goes on."""
    wrong = []
    row = torch.full((1,), float(rank)).expand(6)
    gathered = [torch.empty(6) for _ in range(world)]
    dist.all_gather(gathered, row)
    if [t[5].item() for t in gathered] != list(range(world)):
        wrong.append(f"rank {rank}: all_gather of an expanded input: {gathered}")
    try:
        dist.all_reduce(torch.ones(1).expand(6))
        wrong.append(f"rank {rank}: an expanded output was accepted")
    except ValueError as error:
        if "all_reduce" not in str(error) or "[6]" not in str(error):
            wrong.append(f"rank {rank}: the refusal does not name the call and the sizes: {error}")
    after = torch.ones(3)
    dist.all_reduce(after)
    if after.tolist() != [world] * 3:
        wrong.append(f"rank {rank}: after the refusal: {after}")
    return wrong


@pytest.mark.parametrize("world", [1, 3])
def test_expanded_tensors_are_inputs_only(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(expanded))


def in_place(rank: int, world: int, count: int) -> list[str]:
    """Inputs that are part of the output: the usual place is what FSDP does, any other must work too."""
    wrong: list[str] = []
    mine = [values(r, 5, (count,), torch.float32) for r in range(world)]
    for shift in range(world):
        output = torch.empty(world * count)
        place = output[(rank + shift) % world * count :][:count]
        place.copy_(mine[rank])
        dist.all_gather_into_tensor(output, place)
        report(wrong, f"all_gather_into_tensor from part +{shift}", output, torch.cat(mine))

        whole = torch.cat([values(rank, 6 + r, (count,), torch.float32) for r in range(world)])
        part = whole[(rank + shift) % world * count :][:count]
        dist.reduce_scatter_tensor(part, whole)
        wanted = sum((values(r, 6 + rank, (count,), torch.float32) for r in range(world)), torch.zeros(count))
        report(wrong, f"reduce_scatter_tensor into part +{shift}", part, wanted)

    both = torch.cat([values(rank, 20 + r, (count,), torch.float32) for r in range(world)])
    dist.all_to_all_single(both, both)
    report(
        wrong,
        "all_to_all_single in place",
        both,
        torch.cat([values(r, 20 + rank, (count,), torch.float32) for r in range(world)]),
    )

    memory = torch.zeros(world * count + 3)
    source, target = memory[3:], memory[: world * count]  # a shift by three elements
    source.copy_(torch.cat([values(rank, 30 + r, (count,), torch.float32) for r in range(world)]))
    dist.all_to_all_single(target, source)
    report(
        wrong,
        "all_to_all_single, shifted",
        target,
        torch.cat([values(r, 30 + rank, (count,), torch.float32) for r in range(world)]),
    )

    parts = list(torch.empty(world, count))
    parts[rank].copy_(mine[rank])
    dist.gather(parts[rank], parts if rank == world - 1 else None, world - 1)
    if rank == world - 1:
        report(wrong, "gather in place", torch.stack(parts), torch.stack(mine))
    own = values(rank, 40, (count,), torch.float32)
    inputs = [values(0, 40 + r, (count,), torch.float32) for r in range(world)]
    inputs[0] = own if rank == 0 else inputs[0]
    dist.scatter(own, inputs if rank == 0 else None, 0)
    report(wrong, "scatter in place", own, values(0, 40 + rank, (count,), torch.float32))
    return [f"rank {rank}, {count} elements: {line}" for line in wrong]


def report(wrong: list[str], what: str, got: Tensor, wanted: Tensor) -> None:
    if not same_bits(got, wanted):
        wrong.append(f"{what}: {got[:6]} should be {wanted[:6]}")


@pytest.mark.parametrize("count", [5, 4099, 300_000])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_inputs_inside_outputs(rank_pool: Pools, world: int, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(in_place, count))


def kinds_of_tensors(rank: int, world: int) -> list[str]:
    """Leaves that want gradients, inference tensors; strided, so that the result is copied back."""
    wrong = []
    parameter = torch.nn.Parameter(torch.full((6, 2), float(rank)))
    dist.all_reduce(parameter.detach().t())
    with torch.no_grad():
        dist.broadcast(parameter[:, 1], 0)
    total = world * (world - 1) / 2
    if not (parameter == total).all() or parameter.grad is not None:
        wrong.append(f"rank {rank}: parameter {parameter}")
    (parameter * 2).sum().backward()  # still a leaf that autograd accepts
    with torch.inference_mode():
        inference = torch.full((6, 2), float(rank))
        dist.all_reduce(inference[:, 0])
        work = dist.all_reduce(inference[:, 1], async_op=True)
    work.wait()
    if not (inference == total).all():
        wrong.append(f"rank {rank}: inference tensor {inference}")
    return wrong


def test_parameters_and_inference_tensors(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(kinds_of_tensors))
