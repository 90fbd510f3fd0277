"""Facts of this host and process: who we are, which cores we may use, how much of them. Reads /proc and /sys only.

What the parts of a host's identity say:
- boot id: one per running kernel. Containers of a host share it, so it does not tell them apart; a few container
  managers put another one over it, so that a difference proves nothing either.
- network namespace: what scopes the abstract sockets over which ranks hand each other memory. Two namespaces of one
  kernel are two nodes. Its number is unique within a kernel only.
- host name: for people. Copies of one virtual machine may share it.
Together they group candidates for one node. That two ranks are on one node is proved only by opening the other's
shared memory.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/")


def identity(root: Path = ROOT) -> dict[str, str]:
    """hostname, boot_id, network (namespace, such as `net:[4026531840]`); see above. '' for what cannot be read."""
    try:
        network = os.readlink(root / "proc/self/ns/net")
    except OSError:
        network = ""
    return {
        "hostname": _read(root / "proc/sys/kernel/hostname") or socket.gethostname(),
        "boot_id": _read(root / "proc/sys/kernel/random/boot_id"),
        "network": network,
    }


def facts(root: Path = ROOT) -> dict[str, Any]:
    """JSON values: those of `identity`, pid, cores (the CPUs this process may run on), cpu_quota
    (in cores, None without a limit), cgroup (its path, '' if unknown). root: where /proc and /sys are looked for."""
    path = _cgroup(root)
    return {
        "pid": os.getpid(),
        **identity(root),
        "cores": sorted(os.sched_getaffinity(0)),
        "cpu_quota": cpu_quota(root),
        "cgroup": path.get("cpu", path.get("", "")),
    }


def usable_cores(ranks: Iterable[Mapping[str, Any]] | None = None) -> int:
    """Cores the given ranks of one node (their `facts`; default: this process) may use together, at least 1.

    The union of their affinity sets, capped by the sum of the quotas of their cgroups where each of them has one.
    """
    known: list[Mapping[str, Any]] = [facts()] if ranks is None else list(ranks)
    cores = len({core for one in known for core in one["cores"]})
    quotas = {one["cgroup"]: one["cpu_quota"] for one in known}
    if quotas and None not in quotas.values():
        cores = min(cores, math.ceil(sum(quotas.values())))
    return max(1, cores)


def cpu_quota(root: Path = ROOT) -> float | None:
    """The smallest CPU limit on the way from this process's cgroup up to the root, in cores; None without one."""
    paths = _cgroup(root)
    v1 = paths.get("cpu")
    limits = [_v2_limit(folder) for folder in _upwards(root / "sys/fs/cgroup", paths.get("", "/"))]
    if v1 is not None:
        limits += [_v1_limit(folder) for folder in _upwards(root / "sys/fs/cgroup/cpu", v1)]
    found = [limit for limit in limits if limit is not None]
    return min(found) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cgroup(root: Path) -> dict[str, str]:
    """Controller -> path of this process's cgroup; '' is the one hierarchy of version 2."""
    found = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _upwards(top: Path, path: str) -> list[Path]:
    """The folder of a cgroup and those above it. In a container the path may lie outside of what is mounted: then only
    the top is there, which is the container's own."""
    parts = [p for p in path.split("/") if p not in ("", "..")]
    return [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _v2_limit(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _v1_limit(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None
