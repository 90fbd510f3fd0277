"""Runs a function as ranks on the hosts of a lab (scripts/net_lab.py), as `run_ranks` does on this machine."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ranks import RankPool

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import net_lab
from net_lab import Lab

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
_ports = itertools.count(29500)


@lru_cache(maxsize=1)
def why_not() -> str:
    return net_lab.why_not()


@contextmanager
def lab(hosts: int = 2, **options: Any) -> Iterator[Lab]:
    """A lab, or the test is skipped with the reason."""
    if why_not():
        pytest.skip(why_not())
    with Lab(hosts, **options) as made:
        yield made


def run_on(
    made: Lab,
    per_host: int,
    fn: Callable[..., Any],
    *args: Any,
    timeout: float = 60,
    env: dict[str, str | None] | None = None,
    expect_dead: Collection[int] = (),
    hosts: int | None = None,
) -> list[Any]:
    """`fn(rank, world, *args)` on `per_host` ranks of each host (or of the first `hosts`); results by rank.

    As under torchrun, rank 0 is on the first host and holds the store, so it must be the last to end.
    """
    used = hosts or made.hosts
    holders = [made.holder(host) for host in range(used)]
    names: dict[str, str | None] = {
        "MASTER_ADDR": made.address(0),
        "MASTER_PORT": str(next(_ports)),
        "TORCHELASTIC_USE_AGENT_STORE": None,
        "GLOO_SOCKET_IFNAME": "eth0",
        "LOCAL_WORLD_SIZE": str(per_host),
    }
    with RankPool(used * per_host) as pool:
        return pool.run(
            on_host, holders, per_host, fn, args, timeout=timeout, expect_dead=expect_dead, env={**names, **(env or {})}
        )


def on_host(
    rank: int, world: int, holders: Sequence[int], per_host: int, fn: Callable[..., Any], args: Sequence[Any]
) -> Any:
    """The rank function that moves to its host first."""
    net_lab.enter(holders[rank // per_host])
    os.environ["LOCAL_RANK"] = str(rank % per_host)
    return fn(rank, world, *args)
