"""What the RDMA lab needs from the machine: `scripts/rdma_lab setup` installs it, `missing` says what is not there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import rdma_lab_kernel

GUEST = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
}
"""Commands that only a guest needs, and Debian's packages for them."""
NODES = {
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ibv_rc_pingpong": "ibverbs-utils",
    "ib_write_bw": "perftest",
}


def packages() -> list[str]:
    """Debian's packages for a lab, pyverbs for the tests that want it included."""
    return sorted({*GUEST.values(), *NODES.values(), "libibverbs1", "ibverbs-providers", "python3-pyverbs"})


def missing(guest: bool = True) -> str:
    """'' or what this machine lacks for a lab, with the command that brings it; asks no registry and installs nothing.

    guest: for a guest kernel, or on this machine's own."""
    if guest and platform.machine() != "x86_64":
        return f"the guest is x86-64, this machine is {platform.machine()}"
    wanted = {**NODES, **(GUEST if guest else {})}
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    lacking = {command: package for command, package in wanted.items() if shutil.which(command, path=path) is None}
    if not _provider():
        lacking["the verbs provider of rxe"] = "ibverbs-providers"
    if not lacking:
        return ""
    names = " ".join(sorted(set(lacking.values())))
    return f"not installed: {', '.join(lacking)} (Debian: apt-get install {names}, or as root scripts/rdma_lab setup)"


def _provider() -> bool:
    return any(any(folder.glob("libibverbs/librxe-*.so")) for folder in map(Path, _library_folders()))


def _library_folders() -> list[str]:
    return [*map(str, Path("/usr/lib").glob("*-linux-gnu")), "/usr/lib64", "/usr/lib", "/usr/local/lib"]


def setup(say: Callable[[str], None]) -> int:
    """Installs and makes what is missing. Returns the exit status: 0, or 1 after having said what is missing."""
    began = time.monotonic()
    if not _install(say):
        return 1
    installed = time.monotonic()
    try:
        found = rdma_lab_kernel.kernel()
    except rdma_lab_kernel.KernelError as error:
        say(f"no kernel for the guest: {error}")
        return 1
    say(f"ready: {found.version}; packages {installed - began:.0f} s, kernel {time.monotonic() - installed:.0f} s")
    return 0


def _install(say: Callable[[str], None]) -> bool:
    apt = shutil.which("apt-get")
    wanted = [name for name in packages() if not _installed(name)]
    if not wanted:
        return True
    why = missing()
    if apt is None or os.geteuid() != 0:
        if not why:
            return True  # built by hand, or pyverbs alone is not there, which only some tests want
        say(f"{why}; " + ("this is not root" if apt else "there is no apt-get here"))
        return False
    say(f"installing {' '.join(wanted)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wanted]):
        done = subprocess.run(
            [apt, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0 and command[0] == "install":
            say(f"apt-get {' '.join(command)} failed:\n{done.stdout[-2000:]}")
            return False
    return True


def _installed(package: str) -> bool:
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    if shutil.which(query[0]) is None:
        return False
    return subprocess.run(query, capture_output=True, text=True).stdout == "installed"
