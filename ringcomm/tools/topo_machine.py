"""One machine as text: processors, the matrix of `nvidia-smi topo -m` for GPUs and NICs, ports, interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringcomm.ranges import parse_ranges
from ringcomm.topology import Topology, paths
from ringcomm.topology.facts import Cores, Interface, Machine, Port, Rdma

GIDS_SHOWN = 4


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns wide enough for their longest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def machine_lines(machine: Machine) -> list[str]:
    head = f"machine {machine.hostname}: boot {machine.boot_id[:8] or '?'}, network namespace {machine.network or '?'}"
    lines = [head, *indented(_core_lines(machine.cores))]
    lines += indented(f"no {missing.what}: {missing.why}" for missing in machine.missing)
    if paths.devices(machine):
        lines += ["", *table(matrix(machine)), ""]
    lines += indented(line for device in machine.rdma for line in _rdma_lines(device))
    return [*lines, *indented(_interface(one) for one in machine.interfaces), ""]


def indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def matrix(machine: Machine) -> list[list[str]]:
    """Head and one row per GPU and NIC: its relation to each, the CPUs and the NUMA node near it, its name."""
    devices = paths.devices(machine)
    rows = [["", *(device.label for device in devices), "CPU affinity", "NUMA", "device"]]
    for device in devices:
        relations = [paths.relation(device, other) for other in devices]
        numa = "-" if device.pci is None or device.pci.numa is None else str(device.pci.numa)
        rows.append([device.label, *relations, (device.pci.cpus if device.pci else "") or "-", numa, device.name])
    return rows


def legend(topology: Topology) -> list[str]:
    """The words that the matrices of these machines use."""
    used = {cell for machine in topology.machines if machine for row in matrix(machine)[1:] for cell in row[1:-3]}
    shown = {"NV#" if cell.startswith("NV") else cell for cell in used}
    lines = [f"{word:<5} {meaning}" for word, meaning in paths.LEGEND.items() if word in shown]
    return ["legend:", *indented(lines)] if lines else []


def _core_lines(cores: Cores) -> list[str]:
    threads = len(parse_ranges(cores.online))
    count = len(cores.threads) or threads
    parts = [
        _counted(len(cores.sockets), "socket"),
        _counted(len(cores.numa), "NUMA node"),
        _counted(len(cores.complexes), "core complex", "es"),
        _counted(count, "core"),
        _counted(threads, "hardware thread") + f" ({cores.online})",
    ]
    lines = ["cores: " + ", ".join(part for part in parts if not part.startswith("0 "))]
    if len(cores.numa) > 1:
        lines += [f"NUMA {part.number}: cores {part.cpus}" + _distances(cores, i) for i, part in enumerate(cores.numa)]
    return lines


def _distances(cores: Cores, row: int) -> str:
    return f", distances {' '.join(map(str, cores.distances[row]))}" if cores.distances else ""


def _counted(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{plural * (number != 1)}"


def _rdma_lines(device: Rdma) -> list[str]:
    return [line for port in device.ports for line in _port_lines(device.name, port)]


def _port_lines(name: str, port: Port) -> list[str]:
    facts = [f"{port.state}", port.link_layer, f"{port.rate:g} Gbit/s"]
    facts += [f"MTU {port.mtu}"] if port.mtu else []
    facts += [f"lid {port.lid}"] if port.lid else []
    lines = [f"{name} port {port.number}: " + ", ".join(facts)]
    lines += [f"  gid {g.index}: {g.gid} {g.kind} {g.interface}".rstrip() for g in port.gids[:GIDS_SHOWN]]
    more = len(port.gids) - GIDS_SHOWN
    return [*lines, f"  ... and {more} more"] if more > 0 else lines


def _interface(one: Interface) -> str:
    rate = f", {one.rate:g} Gbit/s" if one.rate else ""
    addresses = ", ".join(f"{a.address}/{a.prefix}" for a in one.addresses)
    return f"{one.name}: {'up' if one.up else 'down'}, MTU {one.mtu}{rate}" + (f", {addresses}" if addresses else "")
