"""What this process says of itself and starts once: its facts, the engine, the log."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ringcomm
from ringcomm import devices, flight_record, plan
from ringcomm.bootstrap import log_lines, once
from ringcomm.config import Config, declared
from ringcomm.discover import host
from ringcomm.topology.facts import Machine

_lock = threading.Lock()
_engine_of: Config | None = None  # the first group's: the process's progress and memory settings are its
_log_of: Config | None = None  # the first group's: level and file are its
_most_ranks_here = 1  # ranks of the largest group of this process on this node: they share the cores


def facts() -> dict[str, Any]:
    """For the card: pid, machine (its id), hostname, cores, cpu_quota, cgroup."""
    return {**_lasting_facts(os.getpid()), "cores": sorted(os.sched_getaffinity(0))}


@lru_cache(maxsize=1)
def _lasting_facts(pid: int) -> dict[str, Any]:
    found = host.facts()
    machine = Machine(found["hostname"], found["boot_id"], found["network"]).id
    return {"pid": pid, "machine": machine} | {key: found[key] for key in ("hostname", "cpu_quota", "cgroup")}


def spin_ns(settings: Config, here: Sequence[dict[str, Any]]) -> int:
    """How long a wait of a group spins. here: the cards of its ranks on this machine."""
    global _most_ranks_here
    _most_ranks_here = max(_most_ranks_here, len(here))
    return settings.progress.spin_ns_for(_most_ranks_here, host.usable_cores(here))


def start(extension: Any, settings: Config, ranks: int) -> None:
    """The engine starts with the process's first group and keeps that group's progress and memory settings."""
    global _engine_of
    with _lock:
        if _engine_of is not None:
            for line in once.passed_over(_engine_of, settings, once.ENGINE):
                extension.log(0, line)
            return
        cores = host.usable_cores()
        progress = settings.progress
        ranks = min(ranks, _launched_here() or ranks)
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
        extension.set_builder(plan.build)
        devices.start(extension)
        atexit.register(extension.stop_engine)
        _engine_of = settings


def _launched_here() -> int:
    """How many ranks the launcher started on this machine, 0 where it does not say: who is here is not known yet."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdigit() else 0


def start_log(extension: Any, settings: Config, rank: int, members: Sequence[int]) -> None:
    """Says at INFO who this process is, and on rank 0 where the settings are from.

    Level and file are set by the process's first group: a group made on the way, without options, must not end the log.
    members: the ranks' numbers in the job.
    """
    global _log_of
    with _lock:
        if _log_of is None:
            levels = {"WARN": 0, "INFO": 1, "DEBUG": 2}
            file = (settings.debug.file or "").replace("%r", os.environ.get("RANK", str(members[rank])))
            if not extension.set_log(levels[settings.debug.level], file, f"{facts()['hostname']}:{os.getpid()}"):
                raise ringcomm.ConfigError(f"debug.file is {file!r}, which cannot be opened for writing")
            _log_of = settings
            extension.log(1, log_lines.of_process(extension.reduce_isa(), host.usable_cores()))
        for line in once.passed_over(_log_of, settings, once.LOG):
            extension.log(0, line)
    if rank == 0 and says_info():
        for line in filter(None, (*settings.log_lines(), declared.log_line(settings, members))):
            extension.log(1, line)


def says_info() -> bool:
    """Whether lines at INFO go anywhere."""
    return _log_of is not None and _log_of.debug.level != "WARN"
