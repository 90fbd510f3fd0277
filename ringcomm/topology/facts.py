"""What is known of one machine: plain values that can be saved and replayed. Probes nothing, decides nothing.

Lists of CPUs are texts as the kernel writes them (`0-3,8`). NUMA nodes are the kernel's numbers; a device that the
kernel places nowhere (`-1`) has None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One core complex (cores that share a last-level cache), NUMA node or socket."""

    number: int
    cpus: str


@dataclass(frozen=True)
class Cores:
    """The processors of a machine, as far as the kernel (or the container) shows them."""

    online: str = ""
    threads: tuple[str, ...] = ()
    """The CPUs of each physical core: `0,16` is a core with two hardware threads."""
    complexes: tuple[Part, ...] = ()
    """Numbered here, by lowest CPU; none where the kernel shows no level 3 cache."""
    numa: tuple[Part, ...] = ()
    sockets: tuple[Part, ...] = ()
    distances: tuple[tuple[int, ...], ...] = ()
    """Row i, column j: what the firmware says of an access from numa[i] to memory of numa[j]; 10 is local."""


@dataclass(frozen=True)
class Pci:
    """Where a device sits in the PCI tree."""

    bus: str
    """`domain:bus:device.function` in lower case, such as 0000:3b:00.0."""
    bridges: tuple[str, ...] = ()
    """From the root (`pci0000:3a`) to the bridge right above the device."""
    numa: int | None = None
    cpus: str = ""
    """CPUs the kernel calls local to it."""
    width: int | None = None
    """Lanes in use; None where it does not say."""
    width_max: int | None = None


@dataclass(frozen=True)
class NvLinks:
    """The active NVLinks from one GPU to one other end."""

    peer: str
    """PCI bus number of the GPU or NVSwitch at the other end."""
    count: int
    switch: bool = False


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML numbers them (CUDA_VISIBLE_DEVICES does not apply here)."""

    index: int
    name: str
    uuid: str
    memory: int
    """Bytes."""
    pci: Pci
    nvlinks: tuple[NvLinks, ...] = ()


@dataclass(frozen=True)
class Gid:
    """One entry of a port's address table."""

    index: int
    gid: str
    kind: str = ""
    """`RoCE v2`, `IB/RoCE v1`, as the kernel writes it; '' where it does not say."""
    interface: str = ""


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device."""

    number: int
    state: str
    """ACTIVE, DOWN, INIT, ARMED."""
    link_layer: str
    """InfiniBand or Ethernet."""
    rate: float = 0.0
    """Gbit/s; 0 where unknown."""
    lid: int = 0
    mtu: int | None = None
    """Active MTU in bytes; None where only sysfs was there to ask."""
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What an RDMA device can do, as verbs report it."""

    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_cqe: int
    max_mr_size: int


@dataclass(frozen=True)
class Rdma:
    """One RDMA device (HCA)."""

    name: str
    ports: tuple[Port, ...]
    pci: Pci | None = None
    limits: Limits | None = None
    """None where pyverbs was not there to ask."""


@dataclass(frozen=True)
class Address:
    """One address of an interface."""

    address: str
    prefix: int

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.address else 4


@dataclass(frozen=True)
class Interface:
    """One network interface."""

    name: str
    up: bool
    mtu: int
    loopback: bool = False
    rate: float = 0.0
    """Gbit/s; 0 where the driver does not say."""
    pci: Pci | None = None
    """None for a virtual interface, or one whose device is not on PCI."""
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A kind of fact that could not be had, and the reason in words."""

    what: str
    why: str


@dataclass(frozen=True)
class Machine:
    """One host, as a process on it sees it."""

    hostname: str
    """For people; two hosts may have the same."""
    boot_id: str = ""
    """The same for all processes of one running kernel; '' if unreadable."""
    network: str = ""
    """The network namespace; '' if unreadable."""
    cores: Cores = Cores()
    gpus: tuple[Gpu, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def id(self) -> str:
        """What groups candidates for one node (discover.host says what it proves and what not)."""
        return f"{self.boot_id or self.hostname}/{self.network}"
