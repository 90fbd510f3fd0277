"""Which interface and source address the kernel would use for a peer: asked of the kernel, never of the host name.

A host name often resolves to 127.0.1.1 (Debian's /etc/hosts), which no other host can reach. So addresses offered to
peers are those of interfaces, and the way to one is what a connected UDP socket gets; nothing is sent for that.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringcomm.topology.facts import Interface

_DISCARD_PORT = 9  # any: connecting a UDP socket sends nothing


@dataclass(frozen=True)
class Route:
    """The way to one address of a peer."""

    address: str
    source: str = ""
    """Address of ours that the kernel would put into packets; '' without a way."""
    interface: str = ""
    """The interface that holds `source`; several, separated by commas, where more than one does."""
    why_not: str = ""


def route(address: str, interfaces: Iterable[Interface]) -> Route:
    """The kernel's choice for a literal IPv4 or IPv6 address (`fe80::1%eth0` for a link-local one).

    Raises ValueError for a host name: resolve it first and look at what comes out.
    """
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(socket.getaddrinfo(address, _DISCARD_PORT, family, socket.SOCK_DGRAM)[0][4])
            source = str(probe.getsockname()[0])
    except OSError as error:
        return Route(address, why_not=f"{error.strerror or error}")
    return Route(address, source, ",".join(_holders(source, interfaces)))


def best_route(
    offered: Sequence[str], ours: Sequence[Interface], ask: Callable[[str, Iterable[Interface]], Route] = route
) -> Route | None:
    """The first of `routes`; None where the host offers no address."""
    return next(iter(routes(offered, ours, ask)), None)


def routes(
    offered: Sequence[str], ours: Sequence[Interface], ask: Callable[[str, Iterable[Interface]], Route] = route
) -> list[Route]:
    """The ways to another host that `offers` these, in the order to try them.

    First addresses on a network we share, of several the fastest interface's, by turns where interfaces are equally
    fast; then others that have a way; then those that have none now. Left out is an address that is ours too (docker0
    has the same on every host): it leads to ourselves; unless there is nothing else, for an error should name it.
    """
    tried = [ask(address, ours) for address in _scoped(offered, ours)]
    own = {address.address for one in ours for address in one.addresses}
    others = [way for way in tried if way.address.partition("%")[0] not in own]
    ways = others or tried
    turns = {way.address: sum(w.interface == way.interface for w in ways[:at]) for at, way in enumerate(ways)}

    def place(way: Route) -> tuple[bool, bool, float, int]:
        return not way.source, not _shared(way.address, ours), -_rate(way, ours), turns[way.address]

    return sorted(ways, key=place)


def rails(ways: Sequence[Route], ours: Sequence[Interface]) -> int:
    """How many of `routes`' first ways may carry data side by side: each by an interface of its own, on a network we
    share, as fast as the first. At least 1."""
    found: list[str] = []
    for way in ways:
        shared = way.source and _shared(way.address, ours) and _rate(way, ours) == _rate(ways[0], ours)
        if not shared or "," in way.interface or way.interface in found:
            break
        found.append(way.interface)
    return max(1, len(found))


def _rate(way: Route, ours: Iterable[Interface]) -> float:
    return max((one.rate for one in ours if one.name in way.interface.split(",")), default=0.0)


def _scoped(offered: Sequence[str], ours: Iterable[Interface]) -> Iterator[str]:
    """A link-local address means something on a link only, and which of our links it is on nobody told us."""
    for address in offered:
        if not ipaddress.ip_address(address).is_link_local or "%" in address:
            yield address
            continue
        yield from (f"{address}%{one.name}" for one in ours if one.up and not one.loopback and _link_local(one))


def _link_local(one: Interface) -> bool:
    return any(ipaddress.ip_address(a.address).is_link_local for a in one.addresses if a.family == 6)


def offers(interfaces: Iterable[Interface]) -> list[str]:
    """Addresses by which another host may reach this one: of interfaces that are up; no loopback, no link-local."""
    texts = [a.address for one in interfaces if one.up and not one.loopback for a in one.addresses]
    plain = [text for text in texts if "%" not in text]
    return [t for t in plain if not (ipaddress.ip_address(t).is_loopback or ipaddress.ip_address(t).is_link_local)]


def link_local_offers(interfaces: Iterable[Interface]) -> list[str]:
    """`fe80::1%eth0`, for hosts that have no other addresses. What stands after % means something on this host only."""
    pairs = [(a.address, one.name) for one in interfaces if one.up and not one.loopback for a in one.addresses]
    return [f"{text}%{name}" for text, name in pairs if ":" in text and ipaddress.ip_address(text).is_link_local]


def is_ready(address: str) -> bool:
    """Whether one can listen there: not while IPv6 still looks whether somebody else has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(socket.getaddrinfo(address, 0, family, socket.SOCK_STREAM)[0][4])
    except OSError:
        return False
    return True


def master_warning(name: str) -> str:
    """'' or what is wrong with MASTER_ADDR as seen from here: a name that this machine resolves to its own loopback."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as error:
        return f"MASTER_ADDR {name!r} cannot be resolved here: {error.strerror or error}"
    loopback = sorted(text for text in found if ipaddress.ip_address(text.partition("%")[0]).is_loopback)
    if not loopback or name in loopback or name == "localhost":
        return ""
    return f"MASTER_ADDR {name!r} resolves to {loopback[0]} here (/etc/hosts?), which other hosts cannot reach"


def _holders(source: str, interfaces: Iterable[Interface]) -> list[str]:
    address = source.partition("%")[0]
    return [one.name for one in interfaces if any(a.address == address for a in one.addresses)]


def _shared(address: str, ours: Iterable[Interface]) -> bool:
    wanted = ipaddress.ip_address(address.partition("%")[0])
    networks = [
        ipaddress.ip_network(f"{a.address}/{a.prefix}", strict=False)
        for one in ours
        if one.up and not one.loopback
        for a in one.addresses
    ]
    return any(wanted.version == network.version and wanted in network for network in networks)
