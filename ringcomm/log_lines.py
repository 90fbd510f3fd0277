"""What a group says about itself at INFO: versions, configuration, who its ranks are, how they are connected."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch

import ringcomm
from ringcomm.discover.routes import Route
from ringcomm.values import show_bytes
from ringcomm.verbs import Wire


def of_process(reduce_isa: str, cores: int) -> str:
    """Once per process, with its first group."""
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"ringcomm {ringcomm.__version__}, torch {torch.__version__}, Python {python}, "
        f"reductions by {reduce_isa}, {cores} cores"
    )


def of_group(name: str, rank: int, cards: Sequence[Mapping[str, Any]], connected: str) -> list[str]:
    """On every rank who it is; on rank 0 who is there and how they are connected. cards: hostname and rank, by rank."""
    lines = [f"group {name!r}: rank {rank} of {len(cards)}, rank {cards[rank]['rank']} of the job"]
    if rank == 0:
        # Declared nodes of one machine have one name; machines may have one too.
        places = Counter((card["node"], card["hostname"]) for card in cards)
        listed = ", ".join(f"{host}: {count}" for (_, host), count in places.items())
        lines.append(
            f"group {name!r}: {_many(len(cards), 'rank')} on {_many(len(places), 'node')} ({listed}); {connected}"
        )
    return lines


def of_connections(kind: str, slots: int, capacity: Mapping[str, int], channels: int) -> str:
    """kind: of the connections. capacity: bytes of a slot, by what it connects."""
    sizes = ", ".join(f"{what} {show_bytes(size)}" for what, size in capacity.items())
    return f"over {kind}, {_many(channels, 'channel')}, {slots} slots ({sizes})"


def of_net(taken: Wire, rails: str, way: Route, port: int, peer: int, host: str) -> str:
    """Once per process that has peers on other nodes. rails: the RDMA devices, if any; way: to the first such peer."""
    by = f"by {rails}, met " if rails else ""
    way_text = f"over {way.interface}: {way.source} port {port} to {way.address} of rank {peer} ({host})"
    return f"net: {taken.kind}, {taken.why}; {by}{way_text}"


def of_waits(spin_ns: int, timeout: timedelta) -> str:
    return f"spin {spin_ns / 1000:g} us, timeout {timeout.total_seconds():g} s"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
