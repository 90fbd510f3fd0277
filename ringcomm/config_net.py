"""The keys about what goes between machines: `tcp` and `verbs`."""

# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does.
from __future__ import annotations

from dataclasses import dataclass

from ringcomm.config_key import key
from ringcomm.values import Duration, Text, Whole
from ringcomm.values_net import Interfaces, InterfacesKind, PortsKind
from ringcomm.values_verbs import Hcas, HcasKind


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


@dataclass(frozen=True, kw_only=True)
class Verbs:
    """RDMA between ranks on different machines (docs/rdma.md). What a process finds here when its first group on
    several machines is made holds for all its groups."""

    hca: Hcas | None = key(
        HcasKind(),
        None,
        "Devices and ports to use; channel c takes number c of them, and begins again. Not given, or only what is not "
        "to be used: the first port that is active.",
        env="RINGCOMM_IB_HCA",
    )
    gid_index: int | None = key(
        Whole(0, 255),
        None,
        "Entry of the port's GID table. Not given: over Ethernet the first of RoCE v2 with an IPv4 address, else with "
        "a global IPv6 one, else what there is; InfiniBand: the first.",
        env="RINGCOMM_IB_GID_INDEX",
    )
    traffic_class: int = key(
        Whole(0, 255), 0, "Traffic class of packets, for switches that sort by it (RoCE: DSCP).", env="RINGCOMM_IB_TC"
    )
    service_level: int = key(Whole(0, 15), 0, "Service level (InfiniBand), or priority.", env="RINGCOMM_IB_SL")
    pkey_index: int = key(Whole(0, 65535), 0, "Entry of the port's partition key table.", env="RINGCOMM_IB_PKEY")
    timeout: int = key(
        Whole(1, 31),
        18,
        "A packet that is not acknowledged is sent again after 4.096 us times 2 to this power: 18 is 1.1 s.",
        env="RINGCOMM_IB_TIMEOUT",
    )
    retry_count: int = key(
        Whole(0, 6),
        6,
        "How often it is sent again before the connection breaks. 7, which devices take too, is for ever to soft RoCE.",
        env="RINGCOMM_IB_RETRY_CNT",
    )
