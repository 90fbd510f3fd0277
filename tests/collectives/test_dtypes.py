"""The table of docs/dtypes.md: the page is what the code says, and each cell is what numpy says or a clear refusal.

Two ranks bring every pair of a type's special values (NaN, infinities, -0.0, the largest, subnormals, both ends of the
integers), so a result does not depend on the order of ranks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collective_checks import Pools, check, nothing_wrong
from collective_inputs import COMPLEX, FLOATS, INTEGERS, RARE, REDUCIBLE, same_bits, values
from collective_operations import MOVING, Case
from ringcomm import _load, dtype_docs

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[2]
FACTOR = 0.5
QUANTIZED = (torch.quint8, torch.qint8, torch.qint32)
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")


def cells(allowed: bool) -> Iterator[tuple[torch.dtype, str]]:
    for dtype in dtype_docs.element_types():
        defined = _load.extension().reduce_ops(dtype)
        yield from ((dtype, op) for op in dtype_docs.OPS if (op in defined) == allowed)


def test_the_page_is_what_the_code_says() -> None:
    run = [sys.executable, "-m", "ringcomm", "dtypes", "--markdown"]
    out = subprocess.run(run, cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    page = (ROOT / "docs" / "dtypes.md").read_text()
    assert out.stdout == page, "run: python -m ringcomm dtypes --markdown > docs/dtypes.md"


def test_the_table_has_the_cells_it_should_have() -> None:
    assert {dtype for dtype, _ in cells(True)} == {*REDUCIBLE, *COMPLEX}
    # 4 floats x 6, 8 integers x 8, bool, 3 complex x 3
    assert len(list(cells(True))) == 24 + 64 + 7 + 9


# ------------------------------------------------------------------------------------------------ values


def specials(dtype: torch.dtype) -> Tensor:
    if dtype in FLOATS:
        info = torch.finfo(dtype)
        subnormal = info.smallest_normal / 2
        pairs = [0.0, 1.5, subnormal, info.max, float("inf"), 3.0]
        return torch.tensor([*pairs, *(-x for x in pairs), float("nan")], dtype=dtype)
    if dtype in INTEGERS:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        ends = [0, 1, 2, 3, 7, most // 2, most - 1, most, least, least + 1, least + 6]
        return torch.tensor(ends, dtype=dtype)
    return torch.tensor([False, True])


def pairs_of(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What rank 0 and rank 1 bring: together every pair of special values. Complex: of such parts."""
    if dtype in COMPLEX:
        real = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}[dtype]
        first, second = pairs_of(real)
        return tuple(torch.view_as_complex(torch.stack([x, x.flip(0)], 1)) for x in (first, second))  # type: ignore[return-value]
    one = specials(dtype)
    return one.repeat_interleave(len(one)), one.repeat(len(one))


def _least(a: Array, b: Array) -> Array:
    return np.where((b < a) | (b != b), b, a)  # of equal ones, 0.0 and -0.0, the first


THE_NAN = {
    torch.float64: torch.tensor(0x7FF8 << 48).view(torch.float64),
    torch.float32: torch.tensor(0x7FC0 << 16, dtype=torch.int32).view(torch.float32),
    torch.float16: torch.tensor(0x7E00, dtype=torch.int16).view(torch.float16),
    torch.bfloat16: torch.tensor(0x7FC0, dtype=torch.int16).view(torch.bfloat16),
}
NUMPY: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "premul_sum": lambda a, b: a * a.dtype.type(FACTOR) + b * b.dtype.type(FACTOR),
    "product": np.multiply,
    "min": _least,
    "max": lambda a, b: np.where((b > a) | (b != b), b, a),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def combined(op: str, a: Tensor, b: Tensor) -> Tensor:
    """By numpy; 16-bit floats in float32, rounded once. The NaN of the contract: positive, without payload."""
    dtype = a.dtype
    if dtype.is_complex:
        return torch.view_as_complex(combined(op, torch.view_as_real(a), torch.view_as_real(b)))
    if dtype in (torch.float16, torch.bfloat16) and op == "premul_sum":
        return combined("sum", a * FACTOR, b * FACTOR)  # the factor is applied in the tensor's own type
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    with np.errstate(all="ignore"):
        total = NUMPY[op](a.to(wide).numpy(), b.to(wide).numpy())
        if op == "avg":
            total = total / total.dtype.type(2) if dtype in FLOATS else halved(total)
    result = torch.from_numpy(np.ascontiguousarray(total)).to(dtype)
    if dtype in FLOATS:
        result[result.isnan()] = THE_NAN[dtype]
    return result


def halved(total: Array) -> Array:
    """Toward zero."""
    return np.asarray(total // 2 + ((total < 0) & (total % 2 != 0)), dtype=total.dtype)


def reduced(name: str, op: Any, mine: Tensor, rank: int) -> Tensor:
    """What rank 0 has to see after the operation; rank 1 likewise but for reduce."""
    if name == "all_reduce":
        dist.all_reduce(mine, op)
    elif name == "reduce":
        dist.reduce(mine, 0, op)
    elif name == "reduce_scatter":
        output = torch.empty_like(mine)
        dist.reduce_scatter(output, [mine, mine.clone()], op)
        return output
    else:
        output = torch.empty_like(mine)
        dist.reduce_scatter_tensor(output, torch.cat([mine, mine]), op)
        return output
    return mine


def each_cell(rank: int, world: int, table: list[tuple[torch.dtype, str]]) -> list[str]:
    wrong = []
    for dtype, op in table:
        given = pairs_of(dtype)
        torch_op = dist._make_nccl_premul_sum(FACTOR) if op == "premul_sum" else getattr(dist.ReduceOp, op.upper())
        wanted = combined(op, *given)
        for name in REDUCING:
            got = reduced(name, torch_op, given[rank].clone(), rank)
            right = wanted if name != "reduce" or rank == 0 else given[rank]
            if not same_bits(got, right):
                wrong.append(f"rank {rank}: {name} {op} of {dtype}: {first_difference(got, right, given)}")
    return wrong


def first_difference(got: Tensor, wanted: Tensor, given: tuple[Tensor, Tensor]) -> str:
    i = next(i for i in range(len(wanted)) if not same_bits(got[i : i + 1], wanted[i : i + 1]))
    return f"of {given[0][i].item()} and {given[1][i].item()} is {got[i].item()}, should be {wanted[i].item()}"


def test_each_cell_gives_what_numpy_gives(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(each_cell, list(cells(True))))


TORCH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


@pytest.mark.parametrize("op", TORCH)
def test_the_numpy_reference_agrees_with_torch_on_one_process(op: str) -> None:
    compared = 0
    for dtype, defined in cells(True):
        if defined != op or dtype in COMPLEX:
            continue
        try:
            wanted = TORCH[op](*pairs_of(dtype))
        except (NotImplementedError, RuntimeError) as error:  # torch cannot do everything with uint16 to uint64
            assert "not implemented" in str(error)
            continue
        torch.testing.assert_close(combined(op, *pairs_of(dtype)), wanted, rtol=0, atol=0, equal_nan=True)
        compared += 1
    assert compared >= 6


# ------------------------------------------------------------------------------------------------ refusals


def tensor_of(dtype: torch.dtype) -> Tensor:
    if dtype in QUANTIZED:
        return torch._empty_affine_quantized([4], scale=0.5, zero_point=1, dtype=dtype)
    return torch.empty(4, dtype=dtype)


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    except Exception as error:
        return f"another error: {type(error).__name__}: {error}"
    return "accepted"


def each_refusal(rank: int, world: int, table: list[tuple[torch.dtype, str]]) -> list[str]:
    """Below torch's own checks, which refuse complex numbers in other words."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    wrong = []
    for dtype, op in table:
        kinds: list[Any] = [dist.AllreduceOptions(), dist.ReduceOptions(), dist.ReduceScatterOptions()]
        for options in kinds:
            options.reduceOp = (
                dist._make_nccl_premul_sum(FACTOR)
                if op == "premul_sum"
                else dist.ReduceOp(getattr(dist.ReduceOp, op.upper()))
            )
        one = tensor_of(dtype)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": partial(backend.allreduce, [one], kinds[0]),
            "reduce": partial(backend.reduce, [one], kinds[1]),
            "reduce_scatter": partial(backend.reduce_scatter, [one], [[tensor_of(dtype)] * world], kinds[2]),
        }
        for name, call in calls.items():
            text = refusal(call)
            packed = not _load.extension().moves(dtype)  # refused as a tensor, whatever the op
            if not all(
                word in text for word in ("ringcomm", name, str(dtype), "share a byte" if packed else f" {op} ")
            ):
                wrong.append(f"rank {rank}: {name} {op} of {dtype}: {text}")
    after = torch.ones(3)
    dist.all_reduce(after)
    return wrong if after[0] == world else [*wrong, f"rank {rank}: the group is broken: {after}"]


def test_each_refused_cell_names_operation_op_and_type(rank_pool: Pools) -> None:
    table = list(cells(False))
    assert len(table) > 150
    nothing_wrong(rank_pool(2, backend="ringcomm").run(each_refusal, table))


# ------------------------------------------------------------------------------------------------ moves


@pytest.mark.parametrize("operation", MOVING)
def test_rare_types_move_bit_by_bit(rank_pool: Pools, operation: str) -> None:
    assert {torch.complex32, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.bits16} <= set(RARE)
    cases = [
        Case(operation, dtype, shape=(size,), layout=layout, root=1)
        for dtype in RARE
        for size in (0, 7, 4099)
        for layout in ("contiguous", "every third")
    ]
    check(rank_pool(3, backend="ringcomm"), cases)


def sub_byte_stubs(rank: int, world: int) -> list[str]:
    """torch cannot copy int4 tensors itself; as bytes they move all the same, strided too."""
    sent, int4 = values(0, 1, (9,), torch.uint8), vars(torch)["int4"]
    wrong = []
    for stride in (1, 3):
        tensor = sent.clone() if rank == 0 else torch.zeros(9, dtype=torch.uint8)
        dist.broadcast(tensor.view(int4)[::stride], 0)
        if not torch.equal(tensor[::stride], sent[::stride]):
            wrong.append(f"rank {rank}: stride {stride}: {tensor}")
    # The ranks' strides may differ; their type is still the same one.
    tensor = sent[:3].clone() if rank == 0 else torch.zeros(9, dtype=torch.uint8)
    dist.broadcast(tensor.view(int4) if rank == 0 else tensor.view(int4)[::3], 0)
    if rank > 0 and not torch.equal(tensor[::3], sent[:3]):
        wrong.append(f"rank {rank}: flat to strided: {tensor}")
    return wrong


def test_types_that_torch_cannot_copy_move_with_any_stride(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(sub_byte_stubs))


def quantized(rank: int, shape: tuple[int, ...], dtype: torch.dtype, per_channel: bool) -> Tensor:
    """Scale and zero point tell whose tensor it is."""
    kinds = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
    stored = values(rank, 1, shape, kinds[dtype])
    if not per_channel:
        return torch._make_per_tensor_quantized_tensor(stored, 0.5 + rank, rank + 1)
    scales, zeros = torch.full((shape[0],), 0.5 + rank, dtype=torch.double), torch.full((shape[0],), rank + 1)
    return torch._make_per_channel_quantized_tensor(stored, scales, zeros, 0)


def parameters(tensor: Tensor) -> list[float]:
    if tensor.qscheme() == torch.per_tensor_affine:
        return [tensor.q_scale(), tensor.q_zero_point()]
    return [*tensor.q_per_channel_scales().tolist(), *tensor.q_per_channel_zero_points().tolist()]


def quantized_moves(rank: int, world: int, dtype: torch.dtype, per_channel: bool) -> list[str]:
    shape = (4 * world, 5)
    make = partial(quantized, shape=shape, dtype=dtype, per_channel=per_channel)
    every = [make(r).int_repr() for r in range(world)]
    mine, own = make(rank), parameters(make(rank))
    outputs = [make(rank) for _ in range(world)]
    wrong = []

    def compare(what: str, got: list[Tensor], wanted: list[Tensor]) -> None:
        if not all(torch.equal(g.int_repr(), w) for g, w in zip(got, wanted, strict=True)):
            wrong.append(f"rank {rank}: {what}: {got} should hold {wanted}")
        if any(parameters(g) != own for g in got):
            wrong.append(f"rank {rank}: {what}: scale and zero point are not the receiver's own")

    dist.all_gather(outputs, mine)
    compare("all_gather", outputs, every)
    dist.broadcast(one := make(rank), 1)
    compare("broadcast", [one], [every[1]])
    dist.all_to_all_single(one := make(rank), mine)
    compare("all_to_all_single", [one], [torch.cat([t.chunk(world)[rank] for t in every])])
    outputs = [make(rank) for _ in range(world)]
    dist.gather(mine, outputs if rank == 0 else None, 0)
    compare("gather", outputs, every if rank == 0 else [every[rank]] * world)
    dist.scatter(one := make(rank), [make(5 + r) for r in range(world)] if rank == 0 else None, 0)
    compare("scatter", [one], [make(5 + rank).int_repr()])
    sending: Any = dist.isend(mine, (rank + 1) % world)
    dist.recv(one := make(rank), (rank - 1) % world)
    sending.wait()
    compare("message", [one], [every[rank - 1]])
    if not per_channel:  # torch has no strided views of the others
        dist.broadcast((strided := make(rank)).t(), 1)
        compare("broadcast of a transposed tensor", [strided], [every[1]])
        dist.all_gather(outputs := [make(rank) for _ in range(world)], mine.t().t()[:, :])
        compare("all_gather of a view", outputs, every)
    return wrong


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_the_storage_of_quantized_tensors_moves(rank_pool: Pools, dtype: torch.dtype, per_channel: bool) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(quantized_moves, dtype, per_channel))


def mistaken_moves(rank: int, world: int) -> list[str]:
    packed, eight = torch.empty(6, dtype=torch.quint4x2), quantized(0, (6,), torch.qint8, False)
    return [
        refusal(lambda: dist.broadcast(packed, 0)),
        refusal(lambda: dist.all_gather([quantized(0, (5,), torch.qint8, False)] * world, eight)),
        refusal(lambda: dist.all_gather_into_tensor(torch.empty(12, dtype=torch.int8), eight)),
    ]


def test_packed_types_and_other_sizes_or_types_are_refused(rank_pool: Pools) -> None:
    words = [("torch.quint4x2", "share a byte"), ("6 elements", "5"), ("Char", "QInt8")]
    for texts in rank_pool(2, backend="ringcomm").run(mistaken_moves):
        for text, parts in zip(texts, words, strict=True):
            assert all(part in text for part in parts), text
