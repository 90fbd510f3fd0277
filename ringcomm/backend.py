"""The creator torch calls for every group: options, configuration, exchange of cards, agreement, connected backend.

Readable in one page on purpose; each step's details live in the module it calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.constants import default_pg_timeout

from ringcomm import _load, bootstrap, config, flight_record
from ringcomm import plan as plans
from ringcomm.bootstrap import log_lines, nodes, process, verbs, wires
from ringcomm.config import declared

if TYPE_CHECKING:
    from torch.distributed import Backend, Store

BARE = "(bare)"
"""How errors call a group that has no name in torch."""


def create(options: Any, backend_options: Any) -> Backend | ProcessGroup:
    """Makes the backend of one group; what torch calls.

    options: torch's `_DistributedBackendOptions` (store, group_rank, group_size, timeout, group_id).
    backend_options: the user's `pg_options` (see `ringcomm.config.load`) or None.
    Blocks until every rank of the group has come. Raises ValueError for a timeout that is not positive,
    ConfigError, BootstrapError, AgreementError, ImportError, or RuntimeError naming the rank that cannot be reached.

    Without a group_id the caller is not `init_process_group` but code that makes a group of its own beside the named
    ones, as torch's RPC does. It gets a ProcessGroup: object collectives take nothing else.
    """
    if options.timeout <= timedelta(0):
        raise ValueError(f"timeout of group {options.group_id!r} is {options.timeout}; it must be above zero")
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
    Raises ValueError for a size below 1, a rank that is not in 0 to size - 1 or a timeout that is not positive, and
    what `init_process_group` raises.
    """
    if size < 1:
        raise ValueError(f"size is {size}; it must be at least 1")
    if not 0 <= rank < size:
        raise ValueError(f"rank is {rank}; allowed are 0 to {size - 1}")
    if timeout is None:
        timeout = default_pg_timeout
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise ValueError(f"timeout is {timeout!r}; allowed are None and a timedelta above zero")
    return _join(config.load(options), store, None, name, rank, range(size), timeout)


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
    ranks, deadline = len(numbers), time.monotonic() + timeout.total_seconds()
    record_to = flight_record.prefix(settings, os.environ)
    extension = _load.extension()
    process.start(extension, settings, ranks)
    process.start_log(extension, settings, rank, numbers)
    plan = plans.of_group(settings, ranks, declared.nodes_of(settings, numbers), extension)
    seed = extension.seed(rank=rank, **plan.layout())
    exchange = partial(bootstrap.exchange, store or own_store, rank, ranks)
    mine = {**seed.card(), **process.facts(), **wires.card(), "digest": plan.digest}
    cards = exchange(mine, timeout.total_seconds(), name)
    bootstrap.check_agreement(cards)
    node = nodes.numbers(settings, numbers, cards)
    dialled = [wires.Target()] * ranks
    over_verbs = False
    if len(set(node)) > 1:
        left = max(0.1, round(deadline - time.monotonic(), 1))
        cards = wires.introduced(extension, settings, store or own_store, name, cards, partial(exchange, timeout=left))
        dialled = wires.targets(cards, rank, node)
        wire = verbs.wire(settings, name, cards)
        over_verbs = wire.kind == "verbs"
        if process.says_info():
            wires.log_once(extension, wire, cards, rank, node)
    peers = [
        {**card, "host": card["hostname"], "rank": number, "node": place, "addresses": to.addresses, "rails": to.rails}
        for card, number, place, to in zip(cards, numbers, node, dialled, strict=True)
    ]
    here = [card for card in cards if card["machine"] == mine["machine"]]
    spin_ns = process.spin_ns(settings, here)
    backend = extension.backend(
        seed=seed,
        name=name,
        cards=peers,
        rules=plan.rules(nodes.places(settings, numbers, cards)),
        spin_ns=spin_ns,
        yields=settings.progress.yields,
        timeout=timeout,
        found=partial(_join, settings, own_store),
        record_to=record_to,
        over_verbs=over_verbs,
    )
    if process.says_info():
        text = log_lines.of_connections(backend.connection_kind, settings.memory.slots, plan.slots, plan.channels)
        for line in log_lines.of_group(name, rank, peers, f"{text}; {log_lines.of_waits(spin_ns, timeout)}"):
            extension.log(1, line)
    return backend


def _own(options: Any) -> Any:
    """In a device map torch hands one `pg_options` to every backend; its own kinds, such as NCCL's, are not for us."""
    return None if isinstance(options, torch._C._distributed_c10d.Backend.Options) else options
