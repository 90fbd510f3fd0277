"""Network interfaces: state, MTU, rate and place by sysfs (/sys/class/net), addresses by the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ringcomm.discover import pci, read
from ringcomm.topology.facts import Address, Interface

_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8


def interfaces(addresses: Mapping[str, tuple[Address, ...]], root: Path = read.ROOT) -> tuple[Interface, ...]:
    """All interfaces of this network namespace; addresses: by interface, see discover.addresses."""
    entries = read.folders(root / "sys/class/net")
    return tuple(_interface(entry, addresses.get(entry.name, ())) for entry in entries if entry.is_dir())


def _interface(folder: Path, addresses: tuple[Address, ...]) -> Interface:
    flags = read.number(folder / "flags", 0) or 0
    speed = read.number(folder / "speed") or 0  # Mbit/s; -1 or an error where the driver does not say
    return Interface(
        name=folder.name,
        # `unknown` is what drivers without carrier detection say of a working link.
        up=bool(flags & _IFF_UP) and read.text(folder / "operstate") in ("up", "unknown", ""),
        mtu=read.number(folder / "mtu") or 0,
        loopback=bool(flags & _IFF_LOOPBACK),
        rate=max(0, speed) / 1000,
        pci=pci.located(folder / "device"),
        addresses=addresses,
    )
