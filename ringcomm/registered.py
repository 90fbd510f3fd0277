"""Registered memory (docs/registered_memory.md): CPU tensors that the other ranks of a node read where they lie."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import ModuleType

import torch

from ringcomm import _load, config
from ringcomm.config.values import parse_bytes
from ringcomm.errors import ConfigError


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised tensor in registered memory, as torch.empty makes one on the CPU.

    size: ints or one sequence of them; dtype: torch's default if None. Raises torch.OutOfMemoryError naming bytes,
    limit and key when `memory.registered` or the machine's memory is used up.
    """
    dims = size[0] if len(size) == 1 and not hasattr(size[0], "__index__") else size
    return _extension().registered_empty([operator.index(d) for d in dims], dtype or torch.get_default_dtype())  # type: ignore[union-attr, arg-type]


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of `tensor`, contiguous and uninitialised, in registered memory."""
    return empty(tensor.shape, dtype=tensor.dtype)


def is_registered(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is this process's registered memory (false in a forked child: it is its parent's)."""
    return _load.extension().is_registered(tensor)  # type: ignore[no-any-return]


def registered_bytes() -> int:
    """Registered memory in use by this process, in bytes (whole pages)."""
    numbers = _load.extension().heap_numbers()
    return 0 if numbers is None else numbers["used"]  # type: ignore[no-any-return]


def use_registered_memory(min_bytes: int | str | None = "1MiB") -> None:
    """From now on torch's CPU memory of at least `min_bytes` is registered: DDP's buckets, FSDP's flat parameters.

    It stands in front of torch's CPU allocator; smaller memory, and what finds no room, is torch's own as before. None
    turns it off for what comes. Raises ConfigError for a size that is not understood.
    """
    if min_bytes is None:
        _load.extension().serve_cpu_memory(None)
        return
    try:
        least = parse_bytes(min_bytes)
    except ValueError:
        raise ConfigError(
            f"use_registered_memory: min_bytes={min_bytes!r}: must be bytes, 1048576 or '1MiB', or None"
        ) from None
    _extension().serve_cpu_memory(least)


def _extension() -> ModuleType:
    """The extension, with the heap made: by the first use, here or in the first group."""
    extension = _load.extension()
    if extension.heap_numbers() is None:
        extension.start_heap(config.load().memory.registered_limit())
    return extension
