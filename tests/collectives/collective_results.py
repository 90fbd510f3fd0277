"""What a reduction must give, computed serially with numpy from all ranks' inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
PREMUL_FACTOR = 0.5

_FOLD: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "premul_sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def fold(op: str, inputs: Sequence[Tensor]) -> Tensor:
    """The inputs combined from rank 0 on. 16-bit floats in float32, rounded once; integers wrap; avg divides floats
    truly and integers towards zero; bool sum is OR, product AND; complex numbers by their parts."""
    dtype = inputs[0].dtype
    if dtype.is_complex:
        result = torch.empty(inputs[0].shape, dtype=dtype)
        torch.view_as_real(result).copy_(fold(op, [torch.view_as_real(tensor) for tensor in inputs]))
        return result
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    arrays = [tensor.to(wide).numpy() for tensor in inputs]
    if op == "premul_sum":
        arrays = [array * array.dtype.type(PREMUL_FACTOR) for array in arrays]
    with np.errstate(over="ignore"):
        total = np.asarray(reduce(_FOLD[op], arrays))
    if op == "avg":
        total = _divided(total, len(inputs))
    return torch.from_numpy(total.copy()).reshape(inputs[0].shape).to(dtype)


def _divided(total: Array, ranks: int) -> Array:
    if total.dtype.kind == "f":
        return np.asarray(total / total.dtype.type(ranks))
    floor = total // ranks
    return np.asarray(floor + ((total < 0) & (total % ranks != 0)), dtype=total.dtype)
