"""Which interface and source address the kernel would use for a peer: asked of the kernel, never of the host name.

A host name often resolves to 127.0.1.1 (Debian's /etc/hosts), which no other host can reach. So addresses offered to
peers are those of interfaces, and the way to one is what a connected UDP socket gets; nothing is sent for that.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ringcomm.facts import Interface

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
    """The way to a host that `offers` these: an address on a network we share first, else the first that has a way.

    None where it offers none. An address that is ours too (docker0 has the same on every host) leads to ourselves.
    """
    tried = [ask(address, ours) for address in sorted(offered, key=lambda a: not _shared(a, ours))]
    own = {address.address for one in ours for address in one.addresses}
    working = [way for way in tried if way.source and way.address not in own]
    return working[0] if working else (tried[0] if tried else None)


def offers(interfaces: Iterable[Interface]) -> list[str]:
    """Addresses by which another host may reach this one: of interfaces that are up; no loopback, no link-local."""
    texts = [a.address for one in interfaces if one.up and not one.loopback for a in one.addresses]
    plain = [text for text in texts if "%" not in text]
    return [t for t in plain if not (ipaddress.ip_address(t).is_loopback or ipaddress.ip_address(t).is_link_local)]


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
    wanted = ipaddress.ip_address(address)
    networks = [
        ipaddress.ip_network(f"{a.address}/{a.prefix}", strict=False)
        for one in ours
        if one.up and not one.loopback
        for a in one.addresses
    ]
    return any(wanted.version == network.version and wanted in network for network in networks)
