"""The nodes of an RDMA lab inside their kernel: where their commands run, what they are told, how they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rdma_lab_fabric as fabric
from net_lab import Lab
from rdma_lab_kernel import SHARE

CONTROL = "/run/rdma_lab/control"
COUNTERS = "/run/rdma_lab/sys"
"""The first network namespace's /sys: nodes see the devices in their own, but not hw_counters."""
PORT = 29500


class Nodes:
    """The nodes of this kernel: all `count` of them, or with `alone` only number `alone`, which then has the kernel,
    with its interfaces eth0 for TCP and eth1 for RDMA, to itself. own_machine: nobody else uses this kernel."""

    def __init__(self, count: int, mtu: int, alone: int | None, own_machine: bool, devices: Sequence[str] = ()) -> None:
        self.count, self.alone, self.own_machine = count, alone, own_machine
        self._lab: Lab | None = None
        self._wires: dict[int, fabric.Wire] = {}
        try:
            self._make(mtu, devices)
        except BaseException:
            self.close()
            raise

    def __contains__(self, node: int) -> bool:
        return node in self._wires

    def describe(self) -> list[dict[str, Any]]:
        """For the lab outside: number, device, index of its GID."""
        return [{"node": node, "device": wire.device, "gid": wire.gid} for node, wire in self._wires.items()]

    def command(self, node: int, command: list[str], folder: str) -> list[str]:
        """What to start so that `command` runs on a node, in a folder."""
        if self._lab is None:
            return command
        entered = self._lab.command(node, command)
        return [f"--wd={folder}" if word.startswith("--wd=") else word for word in entered]

    def environment(self, node: int) -> dict[str, str]:
        wire = self._wires[node]
        everybody = range(self.count)
        out = Path(SHARE, f"node{node}")
        out.mkdir(exist_ok=True)
        return {
            "NODE_RANK": str(node),
            "NNODES": str(self.count),
            "NODE_IP": Lab.address(node),
            "NODE_IPS": ",".join(Lab.address(n) for n in everybody),
            "MASTER_ADDR": Lab.address(0),
            "MASTER_PORT": str(PORT),
            "RDMA_DEVICE": wire.device,
            "RDMA_GID_INDEX": str(wire.gid),
            "RDMA_IP": wire.address,
            "RDMA_IPS": ",".join(fabric.address(n, self.own_machine) for n in everybody) if wire.address else "",
            "OUT": str(out),
            "RDMA_LAB_CTL": f"{sys.executable} -E -S {Path(__file__).with_name('rdma_lab_ctl.py')}",
            "RDMA_LAB_CONTROL": CONTROL,
            "RDMA_LAB_SYS": COUNTERS,
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def fault(self, words: Sequence[str]) -> str:
        """Does what is asked of one node. ValueError where the words make no sense; FabricError where it fails."""
        match list(words):
            case ["link", node, ("up" | "down") as way]:
                return fabric.link(self._wires[int(node)], way == "up")
            case ["netem", node, first, *more]:
                return fabric.netem(self._wires[int(node)], [first, *more])
            case ["counters", node]:
                return fabric.counters(self._wires[int(node)])
            case ["kill", node, *name] if len(name) <= 1:
                number = signal.Signals[f"SIG{name[0].upper().removeprefix('SIG')}"] if name else signal.SIGKILL
                pids = list(self.processes(int(node)))
                for pid in pids:
                    end(pid, number)
                return f"{len(pids)} processes"
        raise ValueError("known are: link NODE up|down; netem NODE loss 1%|...|off; kill NODE [SIGNAL]; counters NODE")

    def processes(self, node: int) -> Iterator[int]:
        """Those that were started on the node, and what they started."""
        space = os.readlink(f"/proc/{self._lab.holder(node)}/ns/pid_for_children") if self._lab else ""
        for folder in Path("/proc").iterdir():
            try:
                if not folder.name.isdigit() or not (folder / "cmdline").read_bytes():
                    continue
                if self._lab is None:
                    mine = int(folder.name) not in (1, os.getpid())
                else:
                    # The first of the namespace holds it open: it is the node itself.
                    status = (folder / "status").read_text().split("NSpid:")[1].split("\n")[0].split()
                    mine = os.readlink(folder / "ns/pid") == space and status[-1] != "1"
            except OSError:
                continue
            if mine:
                yield int(folder.name)

    def close(self) -> None:
        if self._lab is not None:
            self._lab.close()
            self._lab = None
        if not self.own_machine:
            fabric.remove(self.count)

    def _make(self, mtu: int, devices: Sequence[str]) -> None:
        if self.alone is None:
            made = fabric.given(devices, self.count) if devices else fabric.shared(self.count, mtu, self.own_machine)
            self._wires = dict(enumerate(made))
            self._lab = Lab(self.count, own_pids=True)
            self._lab.__enter__()
            return
        node = self.alone
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        socket.sethostname(Lab.name(node))
        others = [f"{Lab.address(n)} {Lab.name(n)}" for n in range(self.count) if n != node]
        own = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", f"127.0.1.1 {Lab.name(node)}"]
        Path("/etc/hosts").write_text("\n".join([*own, *others, ""]))
        Path("/proc/sys/net/ipv6/conf/eth0/accept_dad").write_text("0")
        for family, bits in ((4, 24), (6, 64)):
            address = f"{Lab.address(node, family)}/{bits}"
            subprocess.run(["ip", "address", "add", address, "dev", "eth0"], check=True)
        subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
        wire = fabric.Wire(f"rxe{node}", "eth1", fabric.address(node))
        fabric.bring_up([wire], mtu)
        self._wires = {node: wire}


def end(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def with_descendants(pid: int) -> list[int]:
    """Children first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [*(found for child in children for found in with_descendants(int(child))), pid]
