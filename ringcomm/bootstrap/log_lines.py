"""What a group says about itself at INFO: versions, configuration, who its ranks are, how they are connected."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch

import ringcomm
from ringcomm.bootstrap.verbs import Wire
from ringcomm.config.values import show_bytes
from ringcomm.discover.routes import Route


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


def of_net(taken: Wire, devices: str, rails: Sequence[Route], port: int, peer: int, host: str) -> str:
    """Once per process that has peers on other nodes. devices: for RDMA, if any; rails: the ways to the first such peer
    that channels and ranks take by turns."""
    by = f"by {devices}, met " if devices else ""
    ways = " and ".join(f"{way.interface}: {way.source} port {port} to {way.address}" for way in rails)
    return f"net: {taken.kind}, {taken.why}; {by}over {ways} of rank {peer} ({host})"


def of_waits(spin_ns: int, timeout: timedelta) -> str:
    return f"spin {spin_ns / 1000:g} us, timeout {timeout.total_seconds():g} s"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
