"""How far two devices of one machine are apart, in the words of `nvidia-smi topo -m`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ringcomm.topology.facts import Gpu, Machine, Pci

LEGEND = {
    "X": "the device itself",
    "NV#": "a bonded set of # NVLinks",
    "PIX": "at most one PCIe bridge",
    "PXB": "several PCIe bridges, no host bridge",
    "PHB": "a PCIe host bridge (of the processor)",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
    "?": "the kernel does not say",
}


@dataclass(frozen=True)
class Device:
    """A row of the matrix."""

    label: str
    """GPU0, NIC1."""
    name: str
    pci: Pci | None
    gpu: Gpu | None = None


def devices(machine: Machine) -> list[Device]:
    """GPUs, then RDMA devices, then network interfaces on PCI that carry no RDMA device."""
    rows = [Device(f"GPU{gpu.index}", gpu.name, gpu.pci, gpu) for gpu in machine.gpus]
    taken = {one.pci.bus for one in machine.rdma if one.pci}
    nics = [(one.name, one.pci) for one in machine.rdma]
    nics += [(one.name, one.pci) for one in machine.interfaces if one.pci and one.pci.bus not in taken]
    return rows + [Device(f"NIC{i}", name, pci) for i, (name, pci) in enumerate(nics)]


def relation(one: Device, other: Device) -> str:
    """A key of LEGEND, NVLinks with their number (`NV18`)."""
    if one.label == other.label:
        return "X"
    if one.gpu and other.gpu and (links := nvlinks(one.gpu, other.gpu)):
        return f"NV{links}"
    return distance(one.pci, other.pci) if one.pci and other.pci else "?"


def nvlinks(one: Gpu, other: Gpu) -> int:
    """NVLinks from `one` to `other`: direct ones, or what both have to NVSwitches."""
    direct = sum(link.count for link in one.nvlinks if not link.switch and link.peer == other.pci.bus)
    return direct or min(_to_switches(one), _to_switches(other))


def _to_switches(gpu: Gpu) -> int:
    return sum(link.count for link in gpu.nvlinks if link.switch)


def distance(one: Pci, other: Pci) -> str:
    """By the bridges the two have in common."""
    if not one.bridges or not other.bridges:
        return _between_roots(one, other, "?")
    common = 0
    for mine, its in zip(one.bridges, other.bridges, strict=False):
        if mine != its:
            break
        common += 1
    if common == 0:
        return _between_roots(one, other, "SYS")
    if common == 1:
        return "PHB"
    # Below the last common bridge each side passes its own: one a side (the ports of one switch) counts as one bridge.
    own = max(len(one.bridges), len(other.bridges)) - common
    return "PIX" if own <= 1 else "PXB"


def _between_roots(one: Pci, other: Pci, unknown: str) -> str:
    if one.numa is None or other.numa is None:
        return unknown
    return "NODE" if one.numa == other.numa else "SYS"
