"""The keys about what goes between machines: `tcp`."""

# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does.
from __future__ import annotations

from dataclasses import dataclass

from ringcomm.config.keys import key
from ringcomm.config.values import Duration, Text
from ringcomm.config.values_net import Interfaces, InterfacesKind, PortsKind


@dataclass(frozen=True, kw_only=True)
class Tcp:
    """Sockets between ranks on different machines (docs/multi_node.md). What a process finds here when its first group
    on several machines is made holds for all its groups."""

    interfaces: Interfaces | None = key(
        InterfacesKind(),
        None,
        "Network interfaces whose addresses peers are told. Not given: all that are up, without loopback; of those "
        "that lead to a peer the one on a network with it is taken, of several the fastest.",
        env="RINGCOMM_SOCKET_IFNAME",
    )
    ports: tuple[int, int] | None = key(
        PortsKind(),
        None,
        "Ports to listen on: each process takes one of them, so there must be one per rank of a machine. Not given: "
        "the system chooses.",
        env="RINGCOMM_PORT_RANGE",
    )
    dead_after: int = key(
        Duration(500 * 10**6, 3600 * 10**9),
        3 * 10**9,
        "How long a machine or a cable may be silent before its ranks count as dead. A process that dies is noticed at "
        "once.",
    )
    key_file: str | None = key(
        Text("a path"),
        None,
        "A file with the secret, at least 16 bytes, by which the job's processes know each other; the same content on "
        "all. Not given: a random one that travels through the store, which keeps strangers out, but not who can read "
        "the store.",
        env="RINGCOMM_KEY_FILE",
    )
