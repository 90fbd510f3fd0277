"""The compiled data plane, used by ringcomm.backend; not for users. A test compares this file with the extension."""

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

class Seed:
    """What this rank offers to its peers before the group is connected: its segment, and on rank 0 the board."""

    def card(self) -> dict[str, Any]:
        """For the store: socket (abstract address), offer (128-bit nonce, hex), process (key), pid."""

class Backend(dist.Backend):
    """One group's backend: every c10d operation for CPU tensors."""

    @property
    def options(self) -> Any: ...
    def _set_default_timeout(self, arg0: timedelta, /) -> None: ...
    def get_error(self) -> Any: ...  # torch's ErrorType; never blocks

def seed(rank: int, ranks: int, channels: int, slots: int, fan_out: int, pair: int, message: int) -> Seed:
    """fan_out, pair, message: capacity of one slot in bytes. RuntimeError when shared memory cannot be had."""

def backend(
    seed: Seed,
    name: str,
    cards: list[dict[str, Any]],
    rules: list[tuple[int, int | None, str, int, int, str]],
    spin_ns: int,
    yields: int,
    timeout: timedelta,
) -> Backend:
    """Connects to all peers (blocks up to `timeout`). cards: by rank, with `host` and `rank` (in the job) added.
    rules: (collective, max_bytes, schedule, slot bytes, channels, source), in order; the last of each collective has no
    max_bytes."""

def start_engine(workers: int, spin_ns: int, yields: int, memory_limit: int) -> None:
    """Starts the process's engine unless it runs. memory_limit in bytes."""

def stop_engine() -> None:
    """Interpreter exit: every group leaves, no callback runs afterwards."""

def start_heap(limit: int) -> None:
    """Makes the process's registered memory (address space of `limit` bytes) unless it is there. RuntimeError."""

def heap_numbers() -> dict[str, int] | None:
    """limit, used, kept (free, but with its pages) in bytes; None before start_heap, and in a forked child."""

def registered_empty(arg0: list[int], arg1: torch.dtype, /) -> torch.Tensor:
    """Uninitialised. torch.OutOfMemoryError naming bytes, limit and key."""

def is_registered(arg0: torch.Tensor, /) -> bool: ...
def serve_cpu_memory(arg0: int | None, /) -> None:
    """CPU memory of at least so many bytes comes from the heap while it has room; None: none does."""

def set_builder(arg0: Any, /) -> None:
    """callable(collective, schedule, ranks, rank, root or -1, slots) -> packed program, int32 (docs/program.md)."""

def set_log(arg0: int, arg1: str, arg2: str, /) -> bool:
    """level (0 WARN, 1 INFO, 2 DEBUG), file ('' for stderr), prefix. False: the file cannot be opened."""

def log(arg0: int, arg1: str, /) -> None: ...
def layout_numbers() -> dict[str, int]:
    """The constants both sides must agree on."""

def check_program(arg0: np.ndarray[Any, np.dtype[np.int32]], /) -> str:
    """'' if the table is a legal program, else what is wrong with it."""

def memory_used() -> int:
    """Bytes of shared memory this process has committed."""

def reduce_isa() -> str: ...
