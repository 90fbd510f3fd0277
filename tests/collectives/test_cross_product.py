"""Operation x dtype x op x layout x size x ranks, generated, each result bit for bit what numpy gives.

Long tier. The quick tests prove that the comparison sees one wrong bit anywhere, and a backend that does nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import Pools, nothing_wrong
from collective_inputs import COMPLEX, MOVED_ONLY, RARE, REDUCIBLE, ops_of
from collective_operations import MOVING, OPERATIONS, Call, Case, run_cases
from ranks import run_ranks

MANY = 1 << 20
SIZES = (0, 1, 1021, 4 * 1024 + 3)
LAYOUTS = ("contiguous", "every third", "transposed", "expanded", "offset")
PROMISED = 20_000
# The whole product has about 150,000 cases. A fixed part is taken, the same in every run: of each size one of so many,
# and of the largest, where a case costs most, one for each operation.
ONE_OF = {0: 4, 1: 3, 1021: 4, 4 * 1024 + 3: 8}
IN_PLACE = ("all_reduce", "all_reduce_coalesced")
WHOLE = (*IN_PLACE, "broadcast", "reduce")


def kinds(operation: str) -> Iterator[tuple[torch.dtype, str]]:
    if operation in MOVING:
        yield from ((dtype, "sum") for dtype in (*REDUCIBLE, *MOVED_ONLY, *RARE))
    else:
        yield from ((dtype, op) for dtype in (*REDUCIBLE, *COMPLEX) for op in ops_of(dtype))


def place(*parts: object) -> int:
    """A number that depends on the case only: all ranks and all runs draw the same."""
    return zlib.crc32(" ".join(map(str, parts)).encode())


def cases(operation: str, rows: int, world: int) -> Iterator[tuple[int, Case]]:
    """Each with its number."""
    for layout in LAYOUTS:
        if layout == "expanded" and operation in IN_PLACE:
            continue  # an output may not be expanded
        shape = (rows, 2) if layout in ("transposed", "expanded") else (rows,)
        for dtype, op in kinds(operation):
            number = place(operation, layout, dtype, op, rows, world)
            yield number, Case(operation, dtype, op, shape, layout, root=number // 7 % world, seed=number % 31)


def product(world: int) -> Iterator[Case]:
    for operation in OPERATIONS:
        for size in SIZES:
            yield from (case for number, case in cases(operation, size, world) if number % ONE_OF[size] == 0)
        # The largest size is that of the whole message; the others are that of one rank's part.
        rows = MANY if operation in WHOLE else MANY // world
        yield min(cases(operation, rows, world), key=lambda pair: pair[0])[1]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_cross_product(rank_pool: Pools, capsys: pytest.CaptureFixture[str]) -> None:
    done = 0
    for world in range(1, 9):
        chosen = list(product(world))
        nothing_wrong(rank_pool(world, backend="ringcomm").run(run_cases, chosen, timeout=900))
        done += len(chosen)
        rank_pool(world, backend="ringcomm").close()
    with capsys.disabled():
        print(f"\ncross product: {done} checks on 1 to 8 ranks, nothing wrong")
    assert done >= PROMISED


def test_the_product_has_every_operation_type_op_layout_and_size() -> None:
    chosen = [(world, case) for world in range(1, 9) for case in product(world)]
    assert len(chosen) >= PROMISED
    for operation in OPERATIONS:
        mine = [(world, case) for world, case in chosen if case.operation == operation]
        layouts = {*LAYOUTS} - ({"expanded"} if operation in IN_PLACE else set())
        assert {(case.dtype, case.op) for _, case in mine} == set(kinds(operation))
        assert {(case.layout, case.shape[0]) for _, case in mine} >= set(itertools.product(layouts, SIZES))
        assert {(world, case.shape[0]) for world, case in mine} >= set(itertools.product(range(1, 9), SIZES))
        assert sum(case.shape[0] > max(SIZES) for _, case in mine) == 8


# ------------------------------------------------------------------------------------------------ is it seen?


def add_one(call: Call) -> None:
    """To the last element of the last tensor that rank 1 wrote."""
    if call.rank == 1:
        call.outputs[-1].tensor.view(-1)[-1] += 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_wrong_element_is_seen(rank_pool: Pools, operation: str) -> None:
    root = 0 if operation == "broadcast" else 1  # such that rank 1 writes something
    chosen = [Case(operation, torch.int32, shape=(size,), root=root) for size in (1, 1021)]
    reports = rank_pool(3, backend="ringcomm").run(run_cases, chosen, spoil=add_one)
    assert [len(lines) for lines in reports] == [0, 2, 0], reports


def with_a_backend_that_does_nothing(rank: int, world: int, chosen: list[Case]) -> list[str]:
    import ringcomm  # noqa: F401

    dist.init_process_group("ringcomm")
    names = {case.operation.removesuffix("_coalesced").replace("_split", "_single") for case in chosen}
    replaced: Any = dist
    for name in (*names, "all_reduce_coalesced", "all_gather_coalesced"):
        setattr(replaced, name, lambda *_, **__: None)
    replaced._coalescing_manager = lambda *_, **__: contextlib.nullcontext()
    return run_cases(rank, world, chosen)


def test_a_backend_that_does_nothing_is_seen_in_every_operation() -> None:
    chosen = [Case(operation, shape=(5,), root=1) for operation in OPERATIONS]
    reports = run_ranks(with_a_backend_that_does_nothing, 2, chosen)
    seen = {line.split(": ")[1].split(" ")[0] for lines in reports for line in lines}
    assert seen == set(OPERATIONS)
