"""RDMA between nodes: what this process has to offer, and what a group takes. `wires` calls it; docs/rdma.md.

Each rank opens its devices with its port and says in its card which, or why none can be used. All ranks then decide
the same from all cards: nothing is tried later on, for a group whose ranks took different wires would hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringcomm.config import Config
from ringcomm.errors import BootstrapError

Card = dict[str, Any]


@dataclass(frozen=True)
class Wire:
    """What carries a group's data between its nodes."""

    kind: str
    """`tcp` or `verbs`."""
    why: str


def offered(extension: Any, settings: Config) -> Card:
    """What goes into this process's card: `verbs`, its rails, or `no_verbs`, the reason. Opens the devices."""
    if not _wanted(settings):
        return {}
    try:
        return {"verbs": _opened(extension, settings)}
    except RuntimeError as error:
        return {"no_verbs": str(error).removeprefix("ringcomm: ")}


def wire(settings: Config, name: str, cards: Sequence[Mapping[str, Any]]) -> Wire:
    """The same on all ranks, for their settings agree. BootstrapError where `net` is verbs and some rank cannot."""
    if settings.net == "tcp":
        return Wire("tcp", "as net says")
    if not _wanted(settings):
        return Wire("tcp", "as connections.across says")
    reasons = _reasons(cards)
    if not reasons:
        return Wire("verbs", "as net says" if settings.net == "verbs" else "the best there is (net is auto)")
    if settings.net == "verbs":
        raise BootstrapError(
            f"group {name!r}: net is verbs, but not all ranks can use RDMA: {'; '.join(reasons)}. docs/rdma.md says "
            "what is needed; net: auto takes tcp where verbs cannot be used"
        )
    return Wire("tcp", f"verbs is not usable: {'; '.join(reasons)} (net is auto)")


def of_rails(rails: Sequence[Mapping[str, Any]]) -> str:
    """This rank's devices, for the log."""
    return ", ".join(f"{rail['name']} ({_address(rail)}, MTU {rail['mtu']})" for rail in rails)


def _wanted(settings: Config) -> bool:
    """`connections.across: tcp` asks for sockets; only who says `net: verbs` besides means RDMA all the same."""
    return settings.net == "verbs" or (settings.net == "auto" and settings.connections.across != "tcp")


def _opened(extension: Any, settings: Config) -> list[Card]:
    asked = settings.verbs
    ports = extension.verbs_ports()
    chosen = [p for p in ports if asked.hca is None or asked.hca.allow(p["device"], p["port"])]
    if not chosen:
        there = ", ".join(f"{p['device']}:{p['port']}" for p in ports)
        where = settings.sources.get("verbs.hca", "")
        raise RuntimeError(f"verbs.hca is {asked.hca} ({where}) and no device fits; there are {there}")
    if asked.hca is not None and asked.hca.names_some:
        hca = asked.hca
        chosen.sort(key=lambda p: (hca.order(p["device"], p["port"]), p["device"], p["port"]))
    else:
        chosen = [p for p in chosen if p["active"]][:1] or chosen[:1]
    gid = -1 if asked.gid_index is None else asked.gid_index
    opened: list[Card] = extension.open_verbs(
        rails=[(p["device"], p["port"], gid) for p in chosen],
        traffic_class=asked.traffic_class,
        service_level=asked.service_level,
        pkey_index=asked.pkey_index,
        timeout=asked.timeout,
        retry_count=asked.retry_count,
    )
    return opened


def _reasons(cards: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why verbs cannot be used, each reason once with the hosts it holds for; none: they can."""
    found: dict[str, list[str]] = {}
    for card in cards:
        if "verbs" not in card:
            hosts = found.setdefault(card.get("no_verbs", "it was not opened with this process's first group"), [])
            if card["hostname"] not in hosts:
                hosts.append(card["hostname"])
    if found:
        return [f"{', '.join(hosts)}: {why}" for why, hosts in found.items()]
    layers = {bool(rail["ethernet"]): card["hostname"] for card in cards for rail in card["verbs"]}
    if len(layers) > 1:
        return [f"{layers[False]} has InfiniBand, {layers[True]} RoCE"]
    return []


def _address(rail: Mapping[str, Any]) -> str:
    if rail["ethernet"]:
        return f"{rail['gid_kind']}, {rail['gid']}, GID index {rail['gid_index']}"
    return f"InfiniBand, LID {rail['lid']}"
