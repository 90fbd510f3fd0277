"""The creator torch calls for every group: options, configuration, exchange of cards, agreement, connected backend.

Readable in one page on purpose; each step's details live in the module it calls.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import ringcomm
from ringcomm import _load, bootstrap, config, policy
from ringcomm.discover import host

if TYPE_CHECKING:
    from torch.distributed import Backend

MESSAGE_SLOT = 64 << 10
"""Bytes of a point-to-point slot, and the largest message that is sent before its receive is posted."""
_PAGE = 4096

_lock = threading.Lock()
_engine_started = False
_most_ranks_here = 1  # ranks of the largest group of this process on this node: they share the cores


def create(options: Any, backend_options: Any) -> Backend:
    """Makes the backend of one group.

    options: torch's `_DistributedBackendOptions` (store, group_rank, group_size, timeout, group_id).
    backend_options: the user's `pg_options` (see `ringcomm.config.load`) or None.
    Blocks until every rank of the group has come. Raises ConfigError, BootstrapError, AgreementError, ImportError, or
    RuntimeError naming the rank that cannot be reached.
    """
    settings = config.load(backend_options)
    rank, ranks, name = options.group_rank, options.group_size, options.group_id
    timeout: timedelta = options.timeout
    extension = _load.extension()
    _start(extension, settings, ranks)
    _start_log(extension, settings, rank)
    plan = _plan(settings, ranks, extension)
    seed = extension.seed(
        rank=rank, ranks=ranks, channels=plan.channels, slots=settings.memory.slots, message=MESSAGE_SLOT, **plan.slots
    )
    card = {**seed.card(), **_facts(), "digest": plan.digest}
    cards = bootstrap.exchange(options.store, rank, ranks, card, timeout.total_seconds(), name)
    bootstrap.check_agreement(cards)
    numbers = options.global_ranks_in_group or range(ranks)  # torch leaves it empty for the default group
    peers = [{**c, "host": c["hostname"], "rank": number} for c, number in zip(cards, numbers, strict=True)]
    return extension.backend(
        seed=seed,
        name=name,
        cards=peers,
        rules=plan.rules,
        spin_ns=settings.progress.spin_ns_for(_share(ranks), host.usable_cores(cards)),
        yields=settings.progress.yields,
        timeout=timeout,
    )


@dataclass(frozen=True)
class _Plan:
    """What follows from the configuration and the size of the group alone."""

    settings: config.Config
    rules: list[tuple[Any, ...]]
    channels: int
    slots: dict[str, int]
    """Capacity in bytes of a slot, by kind of connection."""
    digest: dict[str, str]


# A program makes many groups from one configuration; its object is kept in the value, so its id stands for one only.
_plans: dict[tuple[int, int], _Plan] = {}


def _plan(settings: config.Config, ranks: int, extension: Any) -> _Plan:
    key = (id(settings), ranks)
    if key not in _plans:
        if len(_plans) >= 64:
            _plans.clear()
        _plans[key] = _Plan(settings, *_tables(settings, ranks), _digest(settings, extension))
    return _plans[key]


def _facts() -> dict[str, Any]:
    return {**_lasting_facts(os.getpid()), "cores": sorted(os.sched_getaffinity(0))}


@lru_cache(maxsize=1)
def _lasting_facts(pid: int) -> dict[str, Any]:
    facts = host.facts()
    return {"pid": pid} | {key: facts[key] for key in ("hostname", "cpu_quota", "cgroup")}


def _digest(settings: config.Config, extension: Any) -> dict[str, str]:
    """What must be alike on all ranks: settings, versions, and what the extension was compiled for."""
    numbers = extension.layout_numbers()
    versions = {"version of ringcomm": ringcomm.__version__, "version of torch": str(torch.__version__).split("+")[0]}
    return settings.digest_parts() | versions | {"program format": str(numbers["program_version"])}


def _tables(settings: config.Config, ranks: int) -> tuple[list[tuple[Any, ...]], int, dict[str, int]]:
    """The decision table for the data plane, the number of channels it asks for, and the slot capacities in bytes."""
    _load_user_schedules(settings.schedules, ranks, settings.memory.slots)
    table = policy.table(settings, ranks)
    channels = max(rule.channels for rule in table)
    # Channels share the memory that one channel would have.
    slots = {kind: settings.memory.capacity(ranks, kind) // channels // _PAGE * _PAGE for kind in ("fan_out", "pair")}
    cap = min(slots.values()) if channels > 1 else max(slots.values())
    numbers = _collective_numbers()
    rows = [(numbers[r.collective], r.max_bytes, r.schedule, min(r.slot, cap), r.channels, r.source) for r in table]
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
        extension.start_engine(
            workers=progress.workers_for(ranks, cores),
            spin_ns=spin,
            yields=progress.yields,
            memory_limit=settings.memory.limit,
        )
        extension.set_builder(_build)
        atexit.register(extension.stop_engine)
        _engine_started = True


def _start_log(extension: Any, settings: config.Config, rank: int) -> None:
    levels = {"WARN": 0, "INFO": 1, "DEBUG": 2}
    file = (settings.debug.file or "").replace("%r", os.environ.get("RANK", str(rank)))
    if not extension.set_log(levels[settings.debug.level], file, f"{_facts()['hostname']}:{os.getpid()}"):
        raise ringcomm.ConfigError(f"debug.file is {file!r}, which cannot be opened for writing")
    if rank == 0 and settings.debug.level != "WARN":
        for line in settings.log_lines():
            extension.log(1, line)
