"""The compiled data plane, used by ringcomm.backend; not for users. A test compares this file with the extension."""

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

class Seed:
    """What this rank offers to its peers before the group is connected: its segment."""

    def card(self) -> dict[str, Any]:
        """For the store: socket (abstract address), offer (128-bit nonce, hex), process (key), pid."""

class BackendOptions:
    """What `options` of a Backend is: the time-out of its calls, and the names torch gives the group. May be copied."""

class Backend(dist.Backend):
    """One group's backend: every c10d operation for CPU tensors, and the collectives for those of one device."""

    @property
    def options(self) -> Any: ...
    @property
    def connection_kind(self) -> str: ...
    def _set_default_timeout(self, arg0: timedelta, /) -> None: ...
    def perform_nocolor_split(self, arg0: Any, /) -> None: ...  # nothing to do: a split asks nothing of the others
    def get_error(self) -> Any: ...  # torch's ErrorType; never blocks

def seed(rank: int, ranks: int, channels: int, slots: int, fan_out: int, pair: int, message: int) -> Seed:
    """fan_out, pair, message: capacity of one slot in bytes. RuntimeError when shared memory cannot be had."""

def backend(
    seed: Seed,
    name: str,
    cards: list[dict[str, Any]],
    rules: list[tuple[int, int | None, str, int, int, str, bool]],
    spin_ns: int,
    yields: int,
    timeout: timedelta,
    found: Any,
    record_to: str,
    over_verbs: bool,
) -> Backend:
    """Connects to all peers (blocks up to `timeout`). cards: by rank, with `host` and `rank` (in the job) added,
    `node` (equal numbers share memory; none: 0) and `addresses` ("10.0.0.1:4711", "[fe80::1%eth0]:4711": of that
    process's port, in the order in which this rank should try them; unused within the own node) and `rails` (so many
    of these, the first, are equally good: channels take them by turns; none: 1).
    rules: (collective, max_bytes, schedule, slot bytes, channels, source, 16-bit floats travel as float32), in order;
    the last of each collective has no max_bytes. found: callable(store or None, name, rank, numbers, timeout) ->
    Backend, for groups made from this one; kept until shutdown. record_to: the beginning of the path of the flight
    record that a failed group writes; '' for none. over_verbs: between nodes, instead of TCP; after open_verbs."""

def start_engine(workers: int, spin_ns: int, yields: int, memory_limit: int) -> None:
    """Starts the process's engine unless it runs. memory_limit in bytes."""

def open_port(bind: list[str], port_low: int, port_high: int, key: bytes, dead_after: timedelta) -> int:
    """Opens the process's TCP port, which groups that span nodes need, unless it is open; gives its number, the same on
    all addresses. bind: numeric addresses, [] for all there are. port_low, port_high: inclusive, 0 for any. key: the
    job's, for the handshake. dead_after: a silent host or cut link is a death. After start_engine. RuntimeError."""

def verbs_ports() -> list[dict[str, Any]]:
    """The ports of RDMA devices: device, port, active, ethernet (RoCE), lid, mtu. RuntimeError that says why there are
    none: no libibverbs, no device."""

def open_verbs(
    rails: list[tuple[str, int, int]],
    traffic_class: int,
    service_level: int,
    pkey_index: int,
    timeout: int,
    retry_count: int,
) -> list[dict[str, Any]]:
    """Opens ports of RDMA devices for this process, unless some are open; after open_port. rails: (device, port, GID
    index or -1 to choose). Gives for each name, ethernet, lid, mtu, gid, gid_index, gid_kind. RuntimeError."""

def take_devices(type: str, driver: str, kernels: str, missing: str, blocks: int, threads: int, warning: str) -> None:
    """Tensors of this device type are taken, over this driver: see `ringcomm.devices.Source`. Opens nothing."""

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
def start_flight_record(capacity: int) -> None:
    """Entries to keep, 0: none. Once, before the first group; later calls are ignored."""

def flight_record(messages: bool) -> bytes:
    """The pickled dictionary; messages: sends and receives among the entries."""

def flight_rank() -> int:
    """This process's rank in the job, as its last group said it."""

def layout_numbers() -> dict[str, int]:
    """The constants both sides must agree on."""

def check_program(arg0: np.ndarray[Any, np.dtype[np.int32]], /) -> str:
    """'' if the table is a legal program, else what is wrong with it."""

def memory_used() -> int:
    """Bytes of shared memory this process has committed."""

def moves(dtype: torch.dtype) -> bool:
    """Whether tensors of this type can be moved between ranks."""

def reduce_ops(dtype: torch.dtype) -> list[str]:
    """The reduce ops defined for this type: some of sum, avg, premul_sum, product, min, max, band, bor, bxor."""

def reduce_isa() -> str: ...
