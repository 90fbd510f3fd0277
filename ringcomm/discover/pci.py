"""Where a device sits in the PCI tree: the bridges above it, its NUMA node and its lanes (/sys/devices/pci...)."""

from __future__ import annotations

import re
from pathlib import Path

from ringcomm.discover import read
from ringcomm.topology.facts import Pci

_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def located(folder: Path) -> Pci | None:
    """The PCI function that `folder` (a `device` link of /sys/class, or /sys/bus/pci/devices/...) is or lies in.

    None where it is not there or not on PCI. A virtio device lies in the function that carries it.
    """
    if not folder.exists():
        return None
    real = folder.resolve()
    chain = [part for part in (real, *real.parents) if _FUNCTION.fullmatch(part.name) or _ROOT.fullmatch(part.name)]
    if not chain or not _FUNCTION.fullmatch(chain[0].name):
        return None
    device = chain[0]
    numa = read.number(device / "numa_node")
    return Pci(
        bus=device.name,
        bridges=tuple(part.name for part in reversed(chain[1:])),
        numa=numa if numa is not None and numa >= 0 else None,
        cpus=read.text(device / "local_cpulist"),
        width=read.number(device / "current_link_width"),
        width_max=read.number(device / "max_link_width"),
    )


def by_bus(root: Path, bus: str) -> Pci:
    """The device with that bus number; only the number where sysfs does not show it (some containers)."""
    return located(root / "sys/bus/pci/devices" / bus) or Pci(bus)


def normal_bus(text: str) -> str:
    """NVML's `00000000:3B:00.0` as sysfs writes it: `0000:3b:00.0`."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
