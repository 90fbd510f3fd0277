"""The RDMA devices of a lab's nodes that share a kernel, or of the one node that has a kernel to itself.

    | bridge rdbr |               Soft-RoCE of Linux 6.1 opens its UDP sockets in the first network namespace, and a
      rd0p     rd1p               device whose interface is in another one moves no data. So all devices stay in the
        |        |                first; the *processes* of the nodes have namespaces of their own, from which the
       rd0      rd1               devices can be seen. A node therefore sees the devices of all nodes: programs choose
     10.78.0.1  10.78.0.2         by name.
      rxe0     rxe1

What a device sends to another really crosses the veth pairs: the kernel finds its way by the interface it is bound to,
not by the destination being an address of this machine. So a link that is down is down, and a lossy one loses.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SYS = Path("/sys/class/infiniband")
ADDRESS_SECONDS = 20.0
"""How long a device may take to have its address, or to follow its link."""


class FabricError(RuntimeError):
    """The machine cannot make the devices; the text says what failed."""


@dataclass
class Wire:
    """What one node has: device, interface ('' of a device we did not make), address, index of that address's GID."""

    device: str
    interface: str
    address: str
    gid: int = -1


def address(node: int, own_machine: bool = True) -> str:
    """Another network on a machine that is not ours alone: so that there can be a lab in the lab's guest."""
    return f"10.{78 if own_machine else 79}.0.{node + 1}"


def shared(count: int, mtu: int, own_machine: bool) -> list[Wire]:
    """rxe devices for `count` nodes of this kernel. own_machine: it is ours alone, so short names and its settings for
    all interfaces are ours as well."""
    names = ("rxe", "rd") if own_machine else ("labrxe", "labrd")
    wires = [Wire(f"{names[0]}{i}", f"{names[1]}{i}", address(i, own_machine)) for i in range(count)]
    bridge = f"{names[1]}br"
    if own_machine:
        _settings("all")
    else:
        remove(count)  # what a killed run may have left
    # Few processes: each costs a tenth of a second or more where all is emulated.
    size = f"mtu {mtu}"
    lines = [f"link add {bridge} {size} type bridge", f"link set {bridge} up"]
    for wire in wires:
        lines.append(f"link add {wire.interface} {size} type veth peer name {wire.interface}p {size}")
        lines.append(f"link set {wire.interface}p master {bridge} up")
    _ip(lines)
    bring_up(wires, mtu)
    return wires


def bring_up(wires: Sequence[Wire], mtu: int) -> None:
    """Addresses and rxe devices of interfaces that are there; waits for the GIDs."""
    for wire in wires:
        _settings(wire.interface)
    _ip(
        line
        for wire in wires
        for line in (
            f"address add {wire.address}/24 dev {wire.interface}",
            f"link set {wire.interface} mtu {mtu} up",
        )
    )
    for wire in wires:
        _run(["rdma", "link", "add", wire.device, "type", "rxe", "netdev", wire.interface])
    for wire in wires:
        wire.gid = _own_gid(wire)


def given(devices: Sequence[str], count: int) -> list[Wire]:
    """Devices that are there, dealt to the nodes in turn; each must have a RoCE v2 GID of an IPv4 address, or none."""
    wires = []
    for node in range(count):
        device = devices[node % len(devices)]
        if not (SYS / device).is_dir():
            raise FabricError(f"there is no RDMA device {device} here; there are {', '.join(found()) or 'none'}")
        index = gid_index(device, None)
        wires.append(Wire(device, "", "", 0 if index is None else index))
    return wires


def found(state: str = "") -> list[str]:
    """The devices that are there; with `state` those with a port in it."""
    devices = sorted(SYS.iterdir()) if SYS.is_dir() else []
    return [d.name for d in devices if not state or any(state in p.read_text() for p in d.glob("ports/*/state"))]


def remove(count: int) -> None:
    """What `shared` made, whole or half, on a machine that is not ours. A device goes with its interface, both ends of
    a veth pair at once."""
    lines = [f"link delete labrd{i}\n" for i in range(count)] + ["link delete labrdbr\n"]
    subprocess.run(["ip", "-force", "-batch", "-"], input="".join(lines), text=True, stderr=subprocess.DEVNULL)


def link(wire: Wire, up: bool) -> str:
    """Returns when the device's port has followed, and has its address again."""
    _ours(wire)
    _run(["ip", "link", "set", wire.interface, "up" if up else "down"])
    _await(f"{wire.device} to follow its link", lambda: up == ("ACTIVE" in state(wire)) or None)
    if up:
        wire.gid = _own_gid(wire)
    return state(wire)


def netem(wire: Wire, words: Sequence[str]) -> str:
    """What the node sends is treated as `tc ... netem WORDS` says, until `off`."""
    _ours(wire)
    if list(words) == ["off"]:
        subprocess.run(["tc", "qdisc", "delete", "dev", wire.interface, "root"], stderr=subprocess.DEVNULL)
    else:
        _run(["tc", "qdisc", "replace", "dev", wire.interface, "root", "netem", *words])
    return subprocess.run(
        ["tc", "qdisc", "show", "dev", wire.interface, "root"], stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def counters(wire: Wire) -> str:
    """JSON of the device's hw_counters, and of its interface's tx_bytes and rx_bytes (headers and all), which rxe does
    not count. Read here: other network namespaces are not shown them."""
    files = sorted((SYS / wire.device).glob("ports/1/hw_counters/*"))
    if wire.interface:
        files += [Path("/sys/class/net", wire.interface, "statistics", name) for name in ("tx_bytes", "rx_bytes")]
    return json.dumps({path.name: int(path.read_text()) for path in files if path.name != "lifespan"})


def state(wire: Wire) -> str:
    return (SYS / wire.device / "ports/1/state").read_text().strip()


def gid_index(device: str, ipv4: str | None) -> int | None:
    """The RoCE v2 entry of this address, or of any IPv4 address."""
    port = SYS / device / "ports/1"
    mapped = "0000:0000:0000:0000:0000:ffff:"
    if ipv4 is not None:
        a, b, c, d = map(int, ipv4.split("."))
        mapped += f"{a:02x}{b:02x}:{c:02x}{d:02x}"
    for path in sorted(port.glob("gids/*"), key=lambda p: int(p.name)):
        try:
            if path.read_text().startswith(mapped) and "v2" in (port / "gid_attrs/types" / path.name).read_text():
                return int(path.name)
        except OSError:  # an entry that is not in use has no type
            continue
    return None


def _own_gid(wire: Wire) -> int:
    return _await(f"the GID of {wire.address} at {wire.device}", lambda: gid_index(wire.device, wire.address))


def _ours(wire: Wire) -> None:
    if not wire.interface:
        raise FabricError(f"{wire.device} is not the lab's: its link is left alone")


def _settings(interface: str) -> None:
    """A packet from one of our own addresses is taken in, and each interface answers for its own address only."""
    folder = Path("/proc/sys/net/ipv4/conf", interface)
    for name, value in (("rp_filter", 0), ("accept_local", 1), ("arp_ignore", 1), ("arp_announce", 2)):
        (folder / name).write_text(str(value))
    # Without detection of duplicates the link-local address, and with it GID 0, is there at once.
    Path(f"/proc/sys/net/ipv6/conf/{interface}/accept_dad").write_text("0")


def _await(what: str, look: Callable[[], object]) -> int:
    end = time.monotonic() + ADDRESS_SECONDS
    while (value := look()) is None:
        if time.monotonic() > end:
            raise FabricError(f"{what} did not come in {ADDRESS_SECONDS:.0f} s")
        time.sleep(0.02)
    assert isinstance(value, int)
    return value


def _ip(lines: Iterable[str]) -> None:
    _run(["ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def _run(command: Sequence[str], told: str = "") -> None:
    done = subprocess.run(command, input=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise FabricError(f"{' '.join(command)}: {done.stdout.strip() or f'status {done.returncode}'}")
