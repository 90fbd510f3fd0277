"""Inputs of a rank, as a function of rank and seed, and tensors of every memory layout to put them in.

The values are such that every result is exact in every dtype (small whole numbers in floats, any bits in integers), so
results are compared bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import ringcomm
from ringcomm import dtype_docs

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
REDUCIBLE = (*FLOATS, *INTEGERS, torch.bool)
COMPLEX = (torch.complex64, torch.complex128, torch.complex32)
MOVED_ONLY = (torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)
# Every other type that moves, but for the quantized ones, whose tensors are of another kind.
RARE = tuple(
    kind
    for kind in dtype_docs.element_types()
    if kind not in (*REDUCIBLE, *MOVED_ONLY) and not dtype_docs.name(kind).startswith("q")
)
FLOAT_OPS = ("sum", "avg", "product", "min", "max", "premul_sum")
INTEGER_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
COMPLEX_OPS = ("sum", "avg", "premul_sum")
BOOL_OPS = ("sum", "product", "min", "max", "band", "bor", "bxor")

MOST_KEPT = 1 << 13
"""Elements of the random numbers that are kept for the next case; 64 KiB."""

# The seams: inline payloads end at 56 bytes (14 float32), slots of the smallest configuration at 4 KiB.
SIZES = (0, 1, 7, 13, 14, 15, 1024, 4 * 1024 + 3)


_place = torch.device("cpu")


def place_on(device: torch.device) -> None:
    """From here on `Placed` tensors of this process are there. Results are compared on the CPU wherever they are."""
    global _place
    _place = device


def ops_of(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype in FLOATS:
        return FLOAT_OPS
    if dtype in COMPLEX:
        return COMPLEX_OPS
    return BOOL_OPS if dtype == torch.bool else INTEGER_OPS


def values(rank: int, seed: int, shape: tuple[int, ...], dtype: torch.dtype, op: str = "sum") -> Tensor:
    """Contiguous, of the given shape. No zeros for products, so that no result is a negative zero by another path."""
    count = math.prod(shape)
    mixed = _mixed(rank, seed, count) if count <= MOST_KEPT else _mixed.__wrapped__(rank, seed, count)
    if dtype in INTEGERS:
        numpy_type = np.dtype(str(dtype).removeprefix("torch."))
        return torch.from_numpy(mixed.astype(numpy_type)).reshape(shape)
    if dtype == torch.bool:
        return torch.from_numpy(mixed % np.uint64(3) == 0).reshape(shape)
    if dtype in COMPLEX:
        whole = torch.from_numpy((mixed % np.uint64(13)).astype(np.float32) - 6)
        return torch.complex(whole, -whole).to(dtype).reshape(shape)
    if dtype not in FLOATS:
        width = dtype.itemsize  # any bits, NaNs of all kinds among them
        bits = mixed.view(np.uint8).reshape(count, 8)[:, :width].copy().reshape(-1)
        return torch.from_numpy(bits).view(dtype).reshape(shape)
    small = torch.from_numpy((mixed % np.uint64(11)).astype(np.float32) - 5)
    if op == "product":
        small = torch.where(small > 0, 2.0, -1.0)
    return small.to(dtype).reshape(shape)


@functools.lru_cache(maxsize=2048)
def _mixed(rank: int, seed: int, count: int) -> NDArray[np.uint64]:
    """uint64 (count,), read-only: all dtypes and ops of a test begin with the same ones."""
    mixed = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        (rank * 0x632BE59BD9B4E019 + seed * 0xD1342543DE82EF95) % 2**64
    )
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed.setflags(write=False)
    return mixed


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal shape, dtype and bits (so NaN equals the same NaN, and -0.0 is not 0.0)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(raw(a.cpu()), raw(b.cpu()))


def raw(tensor: Tensor) -> Tensor:
    # Copied into fresh memory: a view as bytes is refused for some strides of empty tensors.
    tensor = copyable(tensor.detach())
    if tensor.dim() == 1 and tensor.stride(0) == 1 and tensor.numel():
        return tensor.view(torch.uint8)
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1)).view(torch.uint8)


def copyable(tensor: Tensor) -> Tensor:
    """The same memory as integers where torch cannot copy the type between all strides."""
    if tensor.dtype not in RARE or tensor.is_complex():
        return tensor
    return tensor.view(torch.int16 if tensor.itemsize == 2 else torch.uint8)


View = Callable[[Tensor], Tensor]


def layouts(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], View]]:
    """By name: the shape of a base tensor and the view of it that has `shape`."""
    last = (*shape[:-1], shape[-1] * 3 + 1) if shape else ()
    found: dict[str, tuple[tuple[int, ...], View]] = {
        "contiguous": (shape, lambda base: base),
        "offset": ((math.prod(shape) + 8,), lambda base: base[5 : 5 + math.prod(shape)].view(shape)),
    }
    if shape:
        found["column"] = ((*shape, 3), lambda base: base[..., 1])
        found["every third"] = (last, lambda base: base[..., 1::3])
    if len(shape) >= 2:
        found["transposed"] = ((*shape[:-2], shape[-1], shape[-2]), lambda base: base.transpose(-1, -2))
        found["expanded"] = ((*shape[:-1], 1), lambda base: base.expand(shape))  # inputs only
    if len(shape) == 4:
        n, c, h, w = shape
        found["channels_last"] = ((n, h, w, c), lambda base: base.permute(0, 3, 1, 2))
    return found


class Placed:
    """A tensor of some layout inside a larger base, which remembers what must not change around it."""

    def __init__(self, content: Tensor, layout: str, registered: bool = False) -> None:
        base_shape, self.view = layouts(tuple(content.shape))[layout]
        self.base = values(99, 7, base_shape, content.dtype).to(_place)
        if registered:
            self.base = ringcomm.empty_like(self.base).copy_(self.base)
        self.tensor = self.view(self.base)
        assert self.tensor.shape == content.shape, (layout, self.tensor.shape, content.shape)
        if layout == "expanded":
            copyable(self.base).copy_(copyable(content)[..., :1])
        else:
            copyable(self.tensor).copy_(copyable(content))
        self.before = self.base.clone()

    def surroundings_kept(self) -> bool:
        wanted = self.before.clone()
        copyable(self.view(wanted)).copy_(copyable(self.tensor))
        return same_bits(self.base, wanted)

    def unchanged(self) -> bool:
        return same_bits(self.base, self.before)
