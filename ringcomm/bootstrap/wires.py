"""The wires between nodes: this process's port, what ranks tell each other of theirs, and where to dial each peer.

A process opens its port with its first group that spans nodes; no other job ever listens. Such a group makes a second
exchange of cards, in which all say where they listen; later groups find that in the first, and need no second.
What is wrong on one rank (no interface fits, no port is free) is told in the exchange: all refuse with one text.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ringcomm.bootstrap import job_key, log_lines, verbs
from ringcomm.bootstrap.verbs import Wire
from ringcomm.config import Config
from ringcomm.discover import addresses, interfaces, routes
from ringcomm.discover.routes import Route
from ringcomm.errors import AgreementError, BootstrapError, ConfigError
from ringcomm.topology.facts import Interface

if TYPE_CHECKING:
    from torch.distributed import Store

Card = dict[str, Any]


@dataclass(frozen=True)
class _Port:
    pid: int
    card: Mapping[str, Any]
    """port, addresses, key (its id, see job_key); verbs or no_verbs (see verbs)."""


@dataclass(frozen=True)
class Target:
    """How a rank's port is dialled."""

    addresses: list[str] = field(default_factory=list)
    """`address:port`, in the order to try them; none for a rank of this rank's own node."""
    rails: int = 1
    """So many of them, the first, lead over interfaces that are equally good: channel c begins with number c."""


_lock = threading.Lock()
_port: _Port | None = None
_ways: dict[tuple[str, ...], tuple[list[Route], int]] = {}
_logged = False


def card() -> Card:
    """What this process says of its port in every exchange; nothing while it has none."""
    return dict(_port.card) if _port is not None and _port.pid == os.getpid() else {}


def introduced(
    extension: Any, settings: Config, store: Store, name: str, cards: list[Card], exchange: Callable[..., list[Card]]
) -> list[Card]:
    """The cards of a group that spans nodes, each with port and addresses; opens this process's port if need be.

    exchange: as bootstrap.exchange with store, rank, size and time-out filled in, called with card and group.
    Raises BootstrapError or AgreementError with the same text on all ranks where one cannot be reached by TCP.
    """
    if any("port" not in one for one in cards):
        found = exchange(card=_opened(extension, settings, store), group=f"{name}/wires", known=cards)
        cards = [{**one, **more, "nonce": one["nonce"]} for one, more in zip(cards, found, strict=True)]
    wrong = [f"rank {r} ({c['hostname']}): {c['problem']}" for r, c in enumerate(cards) if "problem" in c]
    if wrong:
        raise BootstrapError(f"group {name!r} spans nodes, but not all ranks can use TCP: {'; '.join(wrong)}")
    holders: dict[str, list[int]] = {}
    for rank, one in enumerate(cards):
        holders.setdefault(one["key"], []).append(rank)
    if len(holders) > 1:
        sides = "; ".join(f"ranks {', '.join(map(str, ranks))} have {key}" for key, ranks in holders.items())
        raise AgreementError(
            f"group {name!r}: the ranks' job keys differ ({sides}). A key that was not given (tcp.key_file) comes from "
            "the store in which a process's first group on several nodes was made; give all ranks the same key file"
        )
    return cards


def targets(cards: Sequence[Card], rank: int, nodes: Sequence[int]) -> list[Target]:
    """How this rank dials each rank of the group. Where there are several rails the ranks of a node begin with
    different ones. Raises BootstrapError naming a rank to which this host has no way at all.
    """
    found = []
    turn = list(nodes[:rank]).count(nodes[rank])
    for peer, one in enumerate(cards):
        if nodes[peer] == nodes[rank]:
            found.append(Target())
            continue
        ways, rails = _ways_to(one, cards[rank])
        if not ways[0].source:
            raise BootstrapError(
                f"rank {peer} ({one['hostname']}) listens at {', '.join(one['addresses'])}, to which "
                f"{cards[rank]['hostname']} has no way: {ways[0].why_not}. What a host offers: tcp.interfaces"
            )
        first = turn % rails
        ways = [*ways[first:rails], *ways[:first], *ways[rails:]]
        found.append(Target([_dialled(way.address, one["port"]) for way in ways], rails))
    return found


def log_once(extension: Any, taken: Wire, cards: Sequence[Card], rank: int, nodes: Sequence[int]) -> None:
    """Which net was taken and why, over which device and interface, once per process, by its first peer elsewhere."""
    global _logged
    if _logged:
        return
    _logged = True
    peer = next(r for r in range(len(cards)) if nodes[r] != nodes[rank])
    ways, rails = _ways_to(cards[peer], cards[rank])
    devices = verbs.of_rails(cards[rank]["verbs"]) if taken.kind == "verbs" else ""
    port, host = cards[rank]["port"], cards[peer]["hostname"]
    extension.log(1, log_lines.of_net(taken, devices, ways[:rails], port, peer, host))


def _ways_to(peer: Card, mine: Card) -> tuple[list[Route], int]:
    """The ways, at least one, and how many of them are rails."""
    key = tuple(peer["addresses"])
    # Nodes by declaration only: all addresses are ours too, loopback the nearest.
    if peer["machine"] == mine["machine"]:
        own = sorted(key, key=lambda a: not _loopback(a))
        return [Route(address, address, "loopback" if _loopback(address) else "own") for address in own], 1
    if key not in _ways:
        ours = interfaces.interfaces(addresses.addresses())
        ways = routes.routes(key, ours)
        _ways[key] = ways, routes.rails(ways, ours)
    return _ways[key]


def _opened(extension: Any, settings: Config, store: Store) -> Card:
    """This process's card, with the port open; or the problem with it."""
    global _port
    with _lock:
        if not card():
            try:
                _port = _Port(os.getpid(), _open(extension, settings, store))
            except (ConfigError, OSError, RuntimeError) as error:
                return {"problem": str(error)}
        return card()


def _open(extension: Any, settings: Config, store: Store) -> Card:
    key = job_key.of_job(settings, store)
    offered = _offered(settings, interfaces.interfaces(addresses.addresses()))
    low, high = settings.tcp.ports or (0, 0)
    silence = timedelta(microseconds=settings.tcp.dead_after // 1000)
    number = extension.open_port(bind=offered, port_low=low, port_high=high, key=key, dead_after=silence)
    told = [address.partition("%")[0] for address in offered]
    return {"port": number, "addresses": told, "key": job_key.id_of(key), **verbs.offered(extension, settings)}


def _offered(settings: Config, every: Sequence[Interface]) -> list[str]:
    """The addresses to listen at. Raises ConfigError where there is none."""
    wanted = settings.tcp.interfaces
    chosen = [one for one in every if wanted is None or wanted.allow(one.name)]
    found = routes.offers(chosen) or routes.link_local_offers(chosen)
    # For declared nodes of one machine, which may have no other address; and for who asks for it.
    loops = [one for one in chosen if one.loopback and one.up]
    if wanted is not None:
        loops = [one for one in loops if wanted.names(one.name)]
    elif settings.connections.across != "tcp":
        loops = []
    found += [address.address for one in loops for address in one.addresses]
    found = [address for address in found if routes.is_ready(address)]
    if found:
        return found
    there = ", ".join(f"{one.name} ({_state(one)})" for one in every) or "none"
    where = settings.sources.get("tcp.interfaces", "")
    asked = f"tcp.interfaces is {wanted} ({where}) and no interface fits" if wanted else "no interface can be used"
    raise ConfigError(f"{asked}; there are {there}. RINGCOMM_SOCKET_IFNAME or tcp.interfaces says which to take")


def _state(one: Interface) -> str:
    if not one.up:
        return "down"
    listed = ", ".join(address.address for address in one.addresses) or "no address"
    return f"loopback, {listed}" if one.loopback else listed


def _loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _dialled(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
