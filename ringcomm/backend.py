"""The creator torch calls for every group: options, configuration, exchange of cards, agreement, connected backend.

Readable in one page on purpose; each step's details live in the module it calls.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed import ProcessGroup
from torch.distributed.constants import default_pg_timeout

import ringcomm
from ringcomm import _load, bootstrap, config, config_topology, flight_record, log_lines, policy
from ringcomm.discover import host
from ringcomm.facts import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Backend, Store

    from ringcomm.topology import Place

MESSAGE_SLOT = 64 << 10
"""Bytes of a point-to-point slot, and the largest message that is sent before its receive is posted."""
BARE = "(bare)"
"""How errors call a group that has no name in torch."""
_PAGE = 4096

_lock = threading.Lock()
_engine_started = False
_introduced = False  # in the log
_most_ranks_here = 1  # ranks of the largest group of this process on this node: they share the cores


def create(options: Any, backend_options: Any) -> Backend | ProcessGroup:
    """Makes the backend of one group; what torch calls.

    options: torch's `_DistributedBackendOptions` (store, group_rank, group_size, timeout, group_id).
    backend_options: the user's `pg_options` (see `ringcomm.config.load`) or None.
    Blocks until every rank of the group has come. Raises ConfigError, BootstrapError, AgreementError, ImportError, or
    RuntimeError naming the rank that cannot be reached.

    Without a group_id the caller is not `init_process_group` but code that makes a group of its own beside the named
    ones, as torch's RPC does. It gets a ProcessGroup: object collectives take nothing else.
    """
    settings = config.load(_own(backend_options))
    numbers = list(options.global_ranks_in_group)  # torch leaves it empty for the default group
    made = _join(
        settings,
        options.store,
        None,
        options.group_id or BARE,
        options.group_rank,
        numbers or range(options.group_size),
        options.timeout,
    )
    return made if options.group_id else _as_group(made, options.store)


def create_backend(
    store: Store, rank: int, size: int, timeout: timedelta | None = None, *, name: str = BARE, options: Any = None
) -> Backend:
    """Makes the bare c10d Backend of a group that `torch.distributed` does not know, as `ProcessGroupGloo(...)` does.

    store: shared by the ranks; groups may be made over it again and again, each by all ranks in the same order (give
    groups that are made at the same time a PrefixStore each). timeout: of calls and of the making; torch's default if
    None. name: how errors call the group, the same on all ranks. options: as `pg_options` of `init_process_group`.
    Blocks until all ranks have come. It ends with `shutdown()` or `abort()`, or when the last reference is gone.
    Raises ValueError for a rank that is not in 0 to size - 1, and what `init_process_group` raises.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank is {rank}; allowed are 0 to {size - 1}")
    return _join(config.load(options), store, None, name, rank, range(size), timeout or default_pg_timeout)


def _as_group(backend: Any, store: Store) -> ProcessGroup:
    group = ProcessGroup(store, backend.rank(), backend.size())
    group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, backend)
    return group


def _join(
    settings: config.Config,
    own_store: Store,
    store: Store | None,
    name: str,
    rank: int,
    numbers: Sequence[int],
    timeout: timedelta,
) -> Backend:
    """Makes the backend of this rank, one of len(numbers). numbers: the ranks' numbers in the job, for errors.

    store: where the ranks meet; None for the one this rank's first group came from. The data plane calls it, with
    settings and own_store filled in, when a group is made from this one (split, merge, shrink).
    """
    ranks = len(numbers)
    record_to = flight_record.prefix(settings, os.environ)
    extension = _load.extension()
    _start(extension, settings, ranks)
    _start_log(extension, settings, rank, numbers)
    plan = _plan(settings, config_topology.nodes_of(settings, numbers) or (0,) * ranks, extension)
    seed = extension.seed(
        rank=rank, ranks=ranks, channels=plan.channels, slots=settings.memory.slots, message=MESSAGE_SLOT, **plan.slots
    )
    card = {**seed.card(), **_facts(), "digest": plan.digest}
    cards = bootstrap.exchange(store or own_store, rank, ranks, card, timeout.total_seconds(), name)
    bootstrap.check_agreement(cards)
    here = [c for c in cards if c["machine"] == card["machine"]]
    peers = [{**c, "host": c["hostname"], "rank": number} for c, number in zip(cards, numbers, strict=True)]
    spin_ns = settings.progress.spin_ns_for(_share(ranks), host.usable_cores(here))
    backend = extension.backend(
        seed=seed,
        name=name,
        cards=peers,
        rules=plan.rules,
        spin_ns=spin_ns,
        yields=settings.progress.yields,
        timeout=timeout,
        found=partial(_join, settings, own_store),
        record_to=record_to,
    )
    if settings.debug.level != "WARN":
        text = log_lines.of_connections(backend.connection_kind, settings.memory.slots, plan.slots, plan.channels)
        for line in log_lines.of_group(name, rank, peers, f"{text}; {log_lines.of_waits(spin_ns, timeout)}"):
            extension.log(1, line)
    return backend


def _own(options: Any) -> Any:
    """In a device map torch hands one `pg_options` to every backend; its own kinds, such as NCCL's, are not for us."""
    return None if isinstance(options, torch._C._distributed_c10d.Backend.Options) else options


@dataclass(frozen=True)
class _Plan:
    """What follows from the configuration, and the size and declared nodes of the group, alone."""

    settings: config.Config
    rules: list[tuple[Any, ...]]
    channels: int
    slots: dict[str, int]
    """Capacity in bytes of a slot, by kind of connection."""
    digest: dict[str, str]


# A program makes many groups from one configuration; its object is kept in the value, so its id stands for one only.
_plans: dict[tuple[int, tuple[Place, ...]], _Plan] = {}


def _plan(settings: config.Config, nodes: tuple[Place, ...], extension: Any) -> _Plan:
    """nodes: the number of each group rank's node (or more of its place), alike on all ranks."""
    key = (id(settings), nodes)
    if key not in _plans:
        if len(_plans) >= 64:
            _plans.clear()
        _plans[key] = _Plan(settings, *_tables(settings, nodes), _digest(settings, extension))
    return _plans[key]


def _facts() -> dict[str, Any]:
    return {**_lasting_facts(os.getpid()), "cores": sorted(os.sched_getaffinity(0))}


@lru_cache(maxsize=1)
def _lasting_facts(pid: int) -> dict[str, Any]:
    facts = host.facts()
    machine = Machine(facts["hostname"], facts["boot_id"], facts["network"]).id
    return {"pid": pid, "machine": machine} | {key: facts[key] for key in ("hostname", "cpu_quota", "cgroup")}


def _digest(settings: config.Config, extension: Any) -> dict[str, str]:
    """What must be alike on all ranks: settings, versions, and what the extension was compiled for."""
    numbers = extension.layout_numbers()
    versions = {"version of ringcomm": ringcomm.__version__, "version of torch": str(torch.__version__).split("+")[0]}
    return settings.digest_parts() | versions | {"program format": str(numbers["program_version"])}


def _tables(settings: config.Config, nodes: tuple[Place, ...]) -> tuple[list[tuple[Any, ...]], int, dict[str, int]]:
    """The decision table for the data plane, the number of channels it asks for, and the slot capacities in bytes.

    What a rule runs is a name: that of a hierarchical schedule holds the group's nodes, so `_build` finds them there.
    """
    ranks = len(nodes)
    _load_user_schedules(settings.schedules, ranks, settings.memory.slots)
    table = policy.table(settings, ranks, nodes)
    channels = max(rule.channels for rule in table)
    # Channels share the memory that one channel would have.
    slots = {kind: settings.memory.capacity(ranks, kind) // channels // _PAGE * _PAGE for kind in ("fan_out", "pair")}
    cap = min(slots.values()) if channels > 1 else max(slots.values())
    numbers = _collective_numbers()
    rows = [
        (numbers[r.collective], r.max_bytes, r.schedule, min(r.slot, cap), r.channels, r.source, r.wide) for r in table
    ]
    return rows, channels, slots


@lru_cache(maxsize=64)
def _load_user_schedules(files: tuple[str, ...], ranks: int, slots: int) -> None:
    if files:
        from ringcomm import schedules

        for file in files:
            schedules.load_user(file, ranks=(ranks,), slots=slots)


@lru_cache(maxsize=1)
def _collective_numbers() -> dict[str, int]:
    from ringcomm.program.ops import Collective

    return {c.name: int(c) for c in Collective}


def _build(
    collective: str, schedule: str, ranks: int, rank: int, root: int, slots: int
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The packed program; called by the data plane the first time a (collective, schedule, root) is used."""
    return _packed(collective, schedule, ranks, rank, None if root < 0 else root, slots)


@lru_cache(maxsize=1024)
def _packed(collective: str, schedule: str, ranks: int, rank: int, root: int | None, slots: int) -> Any:
    from ringcomm import schedules
    from ringcomm.program.pack import pack

    return pack(schedules.build(collective, schedule, ranks, rank, root, slots))


def _share(ranks: int) -> int:
    global _most_ranks_here
    _most_ranks_here = max(_most_ranks_here, ranks)
    return _most_ranks_here


def _start(extension: Any, settings: config.Config, ranks: int) -> None:
    """The engine starts with the process's first group and keeps that group's progress and memory settings."""
    global _engine_started
    with _lock:
        if _engine_started:
            return
        cores = host.usable_cores()
        progress = settings.progress
        extension.start_heap(limit=settings.memory.registered_limit())
        # A driver that spins takes the core from the very caller whose calls it waits for, unless cores are to spare.
        spin = 20_000 if ranks < cores else 0
        extension.start_flight_record(flight_record.capacity(os.environ))
        extension.start_engine(
            workers=progress.workers_for(ranks, cores),
            spin_ns=spin,
            yields=progress.yields,
            memory_limit=settings.memory.limit,
        )
        extension.set_builder(_build)
        atexit.register(extension.stop_engine)
        _engine_started = True


def _start_log(extension: Any, settings: config.Config, rank: int, members: Sequence[int]) -> None:
    levels = {"WARN": 0, "INFO": 1, "DEBUG": 2}
    file = (settings.debug.file or "").replace("%r", os.environ.get("RANK", str(rank)))
    if not extension.set_log(levels[settings.debug.level], file, f"{_facts()['hostname']}:{os.getpid()}"):
        raise ringcomm.ConfigError(f"debug.file is {file!r}, which cannot be opened for writing")
    if settings.debug.level == "WARN":
        return
    global _introduced
    if not _introduced:
        extension.log(1, log_lines.of_process(extension.reduce_isa(), host.usable_cores()))
    _introduced = True
    if rank == 0:
        for line in filter(None, (*settings.log_lines(), config_topology.log_line(settings, members))):
            extension.log(1, line)
