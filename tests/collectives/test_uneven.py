"""Parts of different sizes: lists, all_gather_v, reduce_scatter_v, splits with zeros, outputs in either shape.

What one rank cannot know to be unequal ends in an error that names both sides, never in a hang or wrong data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ringcomm
from collective_checks import RANKS, Pools, nothing_wrong
from collective_inputs import same_bits, values
from ranks import run_ranks

DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64)
REDUCED = (torch.float32, torch.bfloat16, torch.int16, torch.int64)
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}


def counts_of(world: int, scale: int) -> list[int]:
    """Rows by rank: one rank has none, and no two others have the same."""
    return [(r * 5 + 3) % (world + 1) * scale for r in range(world)] if world > 1 else [scale]


def gathered(world: int, rows: list[int], dtype: torch.dtype) -> list[Tensor]:
    return [values(r, 1, (rows[r], 3), dtype) for r in range(world)]


def reduced(world: int, shape: tuple[int, ...], seed: int, dtype: torch.dtype, op: str) -> Tensor:
    """Over ranks, in rank order as ringcomm does; the inputs are small whole numbers, so sums are exact."""
    inputs = torch.stack([values(r, seed, shape, dtype) for r in range(world)])
    if op == "max":
        return inputs.amax(0)
    total = inputs.double().sum(0) if dtype.is_floating_point else inputs.sum(0, dtype=dtype)
    return (total / world).to(dtype) if op == "avg" else total.to(dtype)


def by_list(wanted: list[Tensor], rank: int) -> Tensor:
    outputs = [torch.empty_like(w) for w in wanted]
    dist.all_gather(outputs, wanted[rank])
    return torch.cat(outputs)


def by_our_list(wanted: list[Tensor], rank: int) -> Tensor:
    """Strided outputs, an input of another shape and the same size."""
    outputs = [torch.empty(3, w.size(0), dtype=w.dtype).t() for w in wanted]
    ringcomm.all_gather_v(outputs, wanted[rank].reshape(-1))
    return torch.cat(outputs)


def by_counts(wanted: list[Tensor], rank: int) -> Tensor:
    output = torch.empty_like(torch.cat(wanted))
    work = ringcomm.all_gather_v(output, wanted[rank], [w.size(0) for w in wanted], async_op=True)
    assert work is not None
    work.wait()
    return output


def by_asking(wanted: list[Tensor], rank: int) -> Tensor:
    output = torch.empty_like(torch.cat(wanted))
    assert ringcomm.all_gather_v(output, wanted[rank]) is None
    return output


def all_gathers(rank: int, world: int, scale: int) -> list[str]:
    rows, wrong = counts_of(world, scale), []
    for dtype in DTYPES:
        wanted = gathered(world, rows, dtype)
        for form in (by_list, by_our_list, by_counts, by_asking):
            if not same_bits(form(wanted, rank), torch.cat(wanted)):
                wrong.append(f"rank {rank}: {form.__name__} {dtype} {rows}")
    return wrong


def reduce_scatters(rank: int, world: int, scale: int) -> list[str]:
    rows, wrong = counts_of(world, scale), []
    for dtype in REDUCED:
        for name, op in OPS.items():
            if name == "avg" and not dtype.is_floating_point:
                continue
            parts = [values(rank, r, (rows[r], 3), dtype) for r in range(world)]
            wanted = reduced(world, (rows[rank], 3), rank, dtype, name)
            outputs = [torch.empty_like(wanted) for _ in range(4)]
            dist.reduce_scatter(outputs[0], parts, op)
            ringcomm.reduce_scatter_v(outputs[1], [p.t().contiguous().t() for p in parts], op=op)
            work = ringcomm.reduce_scatter_v(outputs[2], torch.cat(parts), rows, op, async_op=True)
            assert work is not None
            work.wait()
            ringcomm.reduce_scatter_v(outputs[3], torch.cat(parts), op=op)
            wrong += [f"form {i} {dtype} {name} {rows}" for i, o in enumerate(outputs) if not same_bits(o, wanted)]
    return wrong


@pytest.mark.parametrize("scale", [1, 700, 30_000])
@pytest.mark.parametrize("operation", [all_gathers, reduce_scatters])
@pytest.mark.parametrize("world", RANKS)
def test_parts_of_different_sizes(rank_pool: Pools, world: int, operation: Any, scale: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(operation, scale))


def all_to_alls(rank: int, world: int, scale: int) -> list[str]:
    """Each pair has its own size, a third of them nothing; once with nothing at all."""
    wrong = []
    for scale_now in (scale, 0):
        rows = [[(a * 3 + b * 5) % 3 * scale_now for b in range(world)] for a in range(world)]  # from a to b
        inputs = [values(rank, b, (rows[rank][b], 2), torch.float32) for b in range(world)]
        wanted = torch.cat([values(a, rank, (rows[a][rank], 2), torch.float32) for a in range(world)])
        outputs = [torch.empty(rows[a][rank], 2) for a in range(world)]
        dist.all_to_all(outputs, inputs)
        output = torch.empty_like(wanted)
        dist.all_to_all_single(output, torch.cat(inputs), [r[rank] for r in rows], rows[rank])
        wrong += [f"{scale_now}: {i}" for i, o in enumerate((torch.cat(outputs), output)) if not same_bits(o, wanted)]
    return wrong


@pytest.mark.parametrize("scale", [1, 5000])
@pytest.mark.parametrize("world", RANKS)
def test_all_to_all_with_empty_parts(rank_pool: Pools, world: int, scale: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(all_to_alls, scale))


def either_shape(rank: int, world: int, count: int) -> list[str]:
    """[n * d0, ...] and [n, d0, ...] hold the same."""
    gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    mine, wrong = values(rank, 1, (count, 2), torch.float32), []
    wanted = torch.stack([values(r, 1, (count, 2), torch.float32) for r in range(world)])
    summed = reduced(world, (world, count, 2), 5, torch.float32, "sum")[rank]
    for shape in ((world * count, 2), (world, count, 2)):
        output, part = torch.empty(shape), torch.empty(count, 2)
        gather(output, mine)
        scatter(part, values(rank, 5, (world, count, 2), torch.float32).reshape(shape))
        if not same_bits(output.reshape(wanted.shape), wanted) or not same_bits(part, summed):
            wrong.append(f"{shape}")
    return wrong


@pytest.mark.parametrize("count", [0, 1, 10_000])
@pytest.mark.parametrize("world", RANKS)
def test_one_output_in_either_shape(rank_pool: Pools, world: int, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(either_shape, count))


def gather_list(sizes: list[int]) -> None:
    outputs = [torch.zeros(s) for s in sizes]
    dist.all_gather(outputs, torch.ones(sizes[dist.get_rank()]))


def scatter_list(sizes: list[int]) -> None:
    dist.reduce_scatter(torch.zeros(sizes[dist.get_rank()]), [torch.ones(s) for s in sizes])


def split(sends: int, receives: int) -> None:
    """Two ranks: what goes to the other, what is expected from it; one row to oneself."""
    rank = dist.get_rank()
    inputs, outputs = ([1, sends], [1, receives]) if rank == 0 else ([sends, 1], [receives, 1])
    dist.all_to_all_single(torch.zeros(1 + receives), torch.ones(1 + sends), outputs, inputs)


# name: what rank 0 and rank 1 do, words the error must have. Every list is right by itself.
CONFLICTS: dict[str, tuple[Callable[[], None], Callable[[], None], tuple[str, ...]]] = {
    "even and uneven": (lambda: gather_list([4, 4]), lambda: gather_list([5, 4]), ("all_gather", "different sizes")),
    "another order": (lambda: gather_list([4, 6]), lambda: gather_list([6, 4]), ("sizes differ", "all_gather")),
    "larger here": (lambda: gather_list([2, 9]), lambda: gather_list([2, 90]), ("sizes differ", "all_gather")),
    "large lists": (
        lambda: gather_list([300_000, 7]),
        lambda: gather_list([300_001, 7]),
        ("sizes differ", "all_gather"),
    ),
    "nothing expected": (lambda: gather_list([3, 0]), lambda: gather_list([3, 2]), ("all_gather",)),
    "reduced even and uneven": (
        lambda: scatter_list([4, 4]),
        lambda: scatter_list([4, 5]),
        ("reduce_scatter", "different sizes"),
    ),
    "reduced": (lambda: scatter_list([5, 7]), lambda: scatter_list([7, 5]), ("sizes differ", "reduce_scatter")),
    "reduced, large": (
        lambda: scatter_list([50_000, 70_000]),
        lambda: scatter_list([50_000, 70_001]),
        ("sizes differ", "reduce_scatter"),
    ),
    "splits": (lambda: split(4, 5), lambda: split(6, 4), ("sizes differ", "all_to_all")),
    "splits with nothing": (lambda: split(4, 0), lambda: split(3, 4), ("all_to_all",)),
}


def disagree(rank: int, world: int, name: str) -> str:
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=4))
    try:
        first, second, _ = CONFLICTS[name]
        (first, second)[rank]()
        dist.all_reduce(torch.ones(2))  # a rank whose own part had ended is told at its next call
    except dist.DistBackendError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize("name", CONFLICTS)
def test_sizes_that_ranks_disagree_on_are_an_error(name: str) -> None:
    texts = run_ranks(disagree, 2, name)
    for text in texts:
        missing = [word for word in ("rank 0", "rank 1", *CONFLICTS[name][2]) if word not in text]
        assert not missing, f"{missing} not in: {text}"


MISTAKES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "counts do not add up": (
        lambda: ringcomm.all_gather_v(torch.empty(5, 1), torch.ones(2, 1), [2, 2]),
        ("all_gather_v", "[2, 2]", "5 rows", "output"),
    ),
    "negative": (
        lambda: ringcomm.reduce_scatter_v(torch.empty(2), torch.ones(2), [3, -1]),
        ("reduce_scatter_v", "-1", "input"),
    ),
    "too few counts": (lambda: ringcomm.all_gather_v(torch.empty(2), torch.ones(2), [2]), ("1 counts", "2 ranks")),
    "counts and a list": (
        lambda: ringcomm.all_gather_v([torch.empty(1)] * 2, torch.ones(1), [1, 1]),
        ("counts", "list"),
    ),
    "too short a list": (lambda: ringcomm.reduce_scatter_v(torch.empty(1), [torch.ones(1)]), ("1 input", "2 ranks")),
    "no rows": (lambda: ringcomm.all_gather_v(torch.tensor(1.0), torch.tensor(1.0)), ("rows", "list")),
    "own part": (
        lambda: ringcomm.all_gather_v(torch.empty(5), torch.ones(5), [2, 3]),
        ("all_gather", "input has 5"),
    ),
}


def mistaken(rank: int, world: int, name: str) -> str:
    try:
        MISTAKES[name][0]()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_what_is_wrong(rank_pool: Pools, name: str) -> None:
    for text in rank_pool(2, backend="ringcomm").run(mistaken, name):
        missing = [word for word in MISTAKES[name][1] if word not in text]
        assert not missing, f"{missing} not in: {text}"
