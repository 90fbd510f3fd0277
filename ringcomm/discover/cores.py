"""Processors: hardware threads, level 3 caches, NUMA nodes, sockets (/sys/devices/system), and those we may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ringcomm.discover import read
from ringcomm.ranges import parse_ranges, show_ranges
from ringcomm.topology.facts import Cores, Part


def cores(root: Path = read.ROOT) -> Cores:
    """All online processors of the machine. What a container hides is left out, not guessed."""
    folder = root / "sys/devices/system/cpu"
    online = _ranges(folder / "online") or tuple(n for n, _ in read.numbered(folder, "cpu"))
    cpus = {number: folder / f"cpu{number}" for number in online}
    numa = _numa(root, set(online))
    return Cores(
        online=show_ranges(online),
        threads=tuple(show_ranges(group) for group in _sets(cpus, _siblings)),
        complexes=tuple(Part(i, show_ranges(group)) for i, group in enumerate(_sets(cpus, _shares_l3))),
        numa=numa,
        sockets=_sockets(cpus),
        distances=_distances(root, numa),
    )


def allowed(root: Path = read.ROOT) -> tuple[int, ...]:
    """The CPUs this process may run on: its affinity mask, which a cgroup's cpuset has already narrowed."""
    for line in read.text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            # The mask may hold CPUs that are not there (0-239 in a small virtual machine).
            online = set(_ranges(root / "sys/devices/system/cpu/online"))
            return tuple(cpu for cpu in parse_ranges(value) if not online or cpu in online)
    return ()


def _ranges(path: Path) -> tuple[int, ...]:
    try:
        return parse_ranges(read.text(path))
    except ValueError:
        return ()


def _sets(cpus: dict[int, Path], members: Callable[[Path], tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The distinct sets that `members` gives for the CPUs, by lowest CPU; a CPU with none is in none."""
    found = {tuple(cpu for cpu in members(folder) if cpu in cpus) for folder in cpus.values()}
    return sorted(group for group in found if group)


def _siblings(cpu: Path) -> tuple[int, ...]:
    return _ranges(cpu / "topology/thread_siblings_list")


def _shares_l3(cpu: Path) -> tuple[int, ...]:
    for _, cache in read.numbered(cpu / "cache", "index"):
        if read.number(cache / "level") == 3:
            return _ranges(cache / "shared_cpu_list")
    return ()


def _sockets(cpus: dict[int, Path]) -> tuple[Part, ...]:
    found: dict[int, list[int]] = {}
    for cpu, folder in cpus.items():
        package = read.number(folder / "topology/physical_package_id")
        # Some virtual machines and arm64 firmware say -1: not known.
        if package is not None and package >= 0:
            found.setdefault(package, []).append(cpu)
    return tuple(Part(number, show_ranges(found[number])) for number in sorted(found))


def _numa(root: Path, online: set[int]) -> tuple[Part, ...]:
    nodes = read.numbered(root / "sys/devices/system/node", "node")
    return tuple(Part(n, show_ranges(online.intersection(_ranges(folder / "cpulist")))) for n, folder in nodes)


def _distances(root: Path, numa: tuple[Part, ...]) -> tuple[tuple[int, ...], ...]:
    folder = root / "sys/devices/system/node"
    rows = [read.text(folder / f"node{part.number}/distance").split() for part in numa]
    if any(len(row) != len(numa) or not all(cell.isdecimal() for cell in row) for row in rows):
        return ()
    return tuple(tuple(int(cell) for cell in row) for row in rows)
