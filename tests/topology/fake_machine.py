"""Trees of /proc and /sys, an NVML and a pyverbs that never were: what discovery reads, with every value known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ringcomm.discover.machine import Sources
from ringcomm.ranges import show_ranges
from ringcomm.topology.facts import Address


def put(root: Path, path: str, text: object) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def link(root: Path, path: str, target: str) -> None:
    """A symbolic link in the tree to another place of it, relative as the kernel's are."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    up = "../" * (len(Path(path).parts) - 1)
    file.symlink_to(up + target)


def host(root: Path, name: str, boot: str = "b0000000", network: int = 4026531840) -> None:
    put(root, "proc/sys/kernel/hostname", name)
    put(root, "proc/sys/kernel/random/boot_id", f"{boot}-0000-4000-8000-000000000000")
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/net").symlink_to(f"net:[{network}]")


def processors(root: Path, sockets: int = 2, numa_each: int = 2, l3_each: int = 2, cores_each: int = 2) -> None:
    """Sockets of NUMA nodes of core complexes of cores with two hardware threads; the second threads come last, as the
    kernel numbers them on x86."""
    count = sockets * numa_each * l3_each * cores_each
    per_numa, per_socket = l3_each * cores_each, numa_each * l3_each * cores_each
    base = "sys/devices/system/cpu"
    put(root, f"{base}/online", f"0-{2 * count - 1}")
    for cpu in range(2 * count):
        core = cpu % count
        complex_ = [c for c in range(count) if c // cores_each == core // cores_each]
        put(root, f"{base}/cpu{cpu}/topology/thread_siblings_list", f"{core},{core + count}")
        put(root, f"{base}/cpu{cpu}/topology/physical_package_id", core // per_socket)
        for index, (level, sharing) in enumerate([(1, [core]), (2, [core]), (3, complex_)]):
            put(root, f"{base}/cpu{cpu}/cache/index{index}/level", level)
            both = show_ranges([*sharing, *(c + count for c in sharing)])
            put(root, f"{base}/cpu{cpu}/cache/index{index}/shared_cpu_list", both)
    nodes = sockets * numa_each
    for node in range(nodes):
        cpus = [c for c in range(count) if c // per_numa == node]
        put(root, f"sys/devices/system/node/node{node}/cpulist", show_ranges([*cpus, *(c + count for c in cpus)]))
        row = [10 if n == node else 12 if n // numa_each == node // numa_each else 32 for n in range(nodes)]
        put(root, f"sys/devices/system/node/node{node}/distance", " ".join(map(str, row)))
    allowed(root, f"0-{2 * count - 1}")


def allowed(root: Path, cpus: str) -> None:
    put(root, "proc/self/status", f"Name:\tpython\nCpus_allowed:\tffff\nCpus_allowed_list:\t{cpus}\nThreads:\t1")


def pci(root: Path, path: str, numa: int, cpus: str = "", width: int = 16, width_max: int = 16) -> str:
    """A PCI function at `path` below sys/devices, such as pci0000:00/0000:00:01.0/0000:01:00.0; its whole path."""
    where = f"sys/devices/{path}"
    for name, value in {
        "numa_node": numa,
        "local_cpulist": cpus,
        "current_link_width": width,
        "max_link_width": width_max,
    }.items():
        put(root, f"{where}/{name}", value)
    link(root, f"sys/bus/pci/devices/{Path(path).name}", where)
    return where


def interface(
    root: Path, name: str, device: str | None = None, speed: int | None = None, mtu: int = 1500, up: bool = True
) -> None:
    """device: what `pci` gave. speed: Mbit/s; None: the file cannot be read, as of an interface that is down."""
    where = f"{device}/net/{name}" if device else f"sys/devices/virtual/net/{name}"
    put(root, f"{where}/flags", "0x9" if name == "lo" else "0x1003" if up else "0x1002")
    put(root, f"{where}/operstate", "unknown" if name == "lo" else "up" if up else "down")
    put(root, f"{where}/mtu", mtu)
    if speed is not None:
        put(root, f"{where}/speed", speed)
    if device:
        link(root, f"{where}/device", device)
    link(root, f"sys/class/net/{name}", where)


def rdma(
    root: Path,
    name: str,
    device: str,
    gids: Sequence[tuple[int, str, str, str]] = (),
    state: str = "4: ACTIVE",
    rate: str = "200 Gb/sec (4X HDR)",
    link_layer: str = "Ethernet",
    lid: str = "0x0",
) -> None:
    """One port. gids: (index, gid, kind, interface); the other entries of its 16 are empty."""
    where = f"{device}/infiniband/{name}"
    for key, value in {"state": state, "rate": rate, "link_layer": link_layer, "lid": lid}.items():
        put(root, f"{where}/ports/1/{key}", value)
    for index in range(16):
        put(root, f"{where}/ports/1/gids/{index}", "0000:0000:0000:0000:0000:0000:0000:0000")
    for index, gid, kind, on in gids:
        put(root, f"{where}/ports/1/gids/{index}", gid)
        put(root, f"{where}/ports/1/gid_attrs/types/{index}", kind)
        put(root, f"{where}/ports/1/gid_attrs/ndevs/{index}", on)
    link(root, f"{where}/device", device)
    link(root, f"sys/class/infiniband/{name}", where)


class NvmlError(Exception):
    """As pynvml.NVMLError."""


@dataclass
class FakeNvml:
    """The part of pynvml that discovery calls. links[i]: bus number -> NVLinks of GPU i to that end."""

    buses: list[str]
    links: Sequence[Mapping[str, int]] = ()
    switches: frozenset[str] = frozenset()
    fails: str = ""
    """Text of the error that nvmlInit raises."""
    open: int = 0

    NVMLError = NvmlError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_FEATURE_ENABLED = 1
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    def nvmlInit(self) -> None:
        if self.fails:
            raise NvmlError(self.fails)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.buses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"Fake GPU 80GB"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-0000000{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{self.buses[handle].upper()}")

    def _ends(self, handle: int) -> list[str]:
        return [bus for bus, count in self.links[handle].items() for _ in range(count)] if self.links else []

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if not self.links:
            raise NvmlError("Not Supported")
        return int(link < len(self._ends(handle)))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=f"0000{self._ends(handle)[link].upper()}".encode())

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if self._ends(handle)[link] in self.switches else 0


class FakeVerbs:
    """The part of pyverbs.device that discovery calls."""

    def __init__(self, names: Sequence[str], fails: str = "") -> None:
        self.names, self.fails = names, fails

    def get_device_list(self) -> list[Any]:
        if self.fails:
            raise RuntimeError(self.fails)
        return [SimpleNamespace(name=name.encode()) for name in self.names]

    def Context(self, name: str) -> Any:
        caps = SimpleNamespace(max_qp=131072, max_qp_wr=32768, max_sge=30, max_cqe=4194303, max_mr_size=1 << 63)
        port = SimpleNamespace(active_mtu=5)
        return SimpleNamespace(query_device=lambda: caps, query_port=lambda number: port, close=lambda: None)


GPU_BUSES = ["0000:03:00.0", "0000:04:00.0", "0000:83:00.0", "0000:84:00.0"]


def gpu_server(root: Path, number: int = 0, rate: str = "200 Gb/sec (4X HDR)") -> Sources:
    """Two sockets, four GPUs joined in pairs by NVLink, one RoCE NIC per socket beside its GPUs behind a PCIe switch,
    and a slow Ethernet port for the rest. number: of the machine, in its names and addresses."""
    host(root, f"gpu-{number}", boot=f"b000000{number}")
    processors(root)
    addresses = {"lo": (Address("127.0.0.1", 8),), "eno1": (Address(f"198.51.100.{10 + number}", 24),)}
    interface(root, "lo", mtu=65536)
    interface(root, "eno1", pci(root, "pci0000:00/0000:00:1c.0/0000:05:00.0", 0, "0-7,16-23", 1, 1), 1000)
    for socket, (root_bus, bus, cpus) in enumerate([("00", "0", "0-3,16-19"), ("80", "8", "8-11,24-27")]):
        switch = f"pci0000:{root_bus}/0000:{root_bus}:01.0/0000:{bus}1:00.0"
        numa = 2 * socket
        pci(root, f"{switch}/0000:{bus}2:00.0/0000:{bus}3:00.0", numa, cpus)
        pci(root, f"{switch}/0000:{bus}2:01.0/0000:{bus}4:00.0", numa, cpus)
        nic = pci(root, f"{switch}/0000:{bus}2:02.0/0000:{bus}6:00.0", numa, cpus)
        net, address = f"eth{socket + 1}", f"203.0.113.{10 + 100 * socket + number}"
        interface(root, net, nic, 200000, 9000)
        tail = f"cb00:71{10 + 100 * socket + number:02x}"
        gids = [
            (0, f"fe80:0000:0000:0000:0e42:a1ff:fe00:000{socket}", "IB/RoCE v1", net),
            (3, f"0000:0000:0000:0000:0000:ffff:{tail}", "RoCE v2", net),
        ]
        rdma(root, f"mlx5_{socket}", nic, gids, rate=rate if socket else "200 Gb/sec (4X HDR)")
        addresses[net] = (Address(address, 25),)
    pairs = [{GPU_BUSES[i ^ 1]: 4} for i in range(4)]
    nvml = FakeNvml(GPU_BUSES, pairs)
    return Sources(root, lambda: nvml, lambda: FakeVerbs(["mlx5_0", "mlx5_1"]), lambda: addresses)
