"""RDMA devices: ports, states, GIDs by sysfs; active MTU and limits by pyverbs where that can be imported."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringcomm.discover import pci, read
from ringcomm.topology.facts import Gid, Limits, Port, Rdma

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_MTU = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}  # enum ibv_mtu


def devices(root: Path = read.ROOT) -> tuple[tuple[Rdma, ...], str]:
    """(the devices, '') or ((), why not)."""
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return (), "no /sys/class/infiniband: the kernel has no RDMA driver loaded, or the container does not show it"
    found = tuple(_device(entry) for entry in read.folders(folder))
    return found, "" if found else "/sys/class/infiniband is empty: no RDMA device"


def with_verbs(found: tuple[Rdma, ...], load: Callable[[], Any] | None = None) -> tuple[tuple[Rdma, ...], str]:
    """The devices with what only verbs can say, and '' or why not. load: gives the module pyverbs.device."""
    if not found:
        return found, ""
    try:
        verbs = load() if load else importlib.import_module("pyverbs.device")
        # It raises instead of returning no device where the kernel has no RDMA.
        names = {_text(device.name) for device in verbs.get_device_list()}
        asked = tuple(_asked(verbs, one) if one.name in names else one for one in found)
    except Exception as error:  # ImportError; OSError of a library that does not fit; pyverbs' own errors
        return found, f"pyverbs cannot be used, so active MTU and limits are not known: {type(error).__name__}: {error}"
    unseen = [one.name for one in found if one.name not in names]
    return asked, f"verbs do not show {', '.join(unseen)} (no access to /dev/infiniband?)" if unseen else ""


def _device(folder: Path) -> Rdma:
    ports = tuple(_port(number, port) for number, port in read.numbered(folder / "ports", ""))
    return Rdma(name=folder.name, ports=ports, pci=pci.located(folder / "device"))


def _port(number: int, folder: Path) -> Port:
    rate = re.match(r"[0-9.]+", read.text(folder / "rate"))  # 200 Gb/sec (4X HDR)
    return Port(
        number=number,
        state=read.text(folder / "state").rpartition(": ")[2],  # 4: ACTIVE
        link_layer=read.text(folder / "link_layer"),
        rate=float(rate[0]) if rate else 0.0,
        lid=read.number(folder / "lid", 0) or 0,
        gids=tuple(_gids(folder)),
    )


def _gids(port: Path) -> list[Gid]:
    """The entries in use; the table itself may have a thousand."""
    found = []
    for index, entry in read.numbered(port / "gids", ""):
        gid = read.text(entry)
        if gid not in ("", NO_GID):
            kind = read.text(port / f"gid_attrs/types/{index}")
            found.append(Gid(index, gid, kind, read.text(port / f"gid_attrs/ndevs/{index}")))
    return found


def _asked(verbs: Any, device: Rdma) -> Rdma:
    context = verbs.Context(name=device.name)
    try:
        caps = context.query_device()
        ports = tuple(
            replace(port, mtu=_MTU.get(int(context.query_port(port.number).active_mtu))) for port in device.ports
        )
        limits = Limits(caps.max_qp, caps.max_qp_wr, caps.max_sge, caps.max_cqe, caps.max_mr_size)
    finally:
        context.close()
    return replace(device, ports=ports, limits=limits)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
