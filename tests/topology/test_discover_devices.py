"""GPUs, RDMA devices, interfaces, identity: from trees and libraries with known values, present and absent."""

from __future__ import annotations

import socket
from pathlib import Path

import fake_machine as fake
from ringcomm.discover import addresses, gpus, host, interfaces, machine, rdma, read
from ringcomm.ranges import parse_ranges
from ringcomm.topology.facts import Address, NvLinks

SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"


def test_gpus_have_their_place_by_sysfs_and_their_links_by_nvml(tmp_path: Path) -> None:
    sources = fake.gpu_server(tmp_path)
    found, why = gpus.gpus(tmp_path, sources.nvml)
    assert why == "" and [gpu.pci.bus for gpu in found] == fake.GPU_BUSES
    assert found[2].pci.numa == 2 and found[2].pci.bridges[0] == "pci0000:80" and found[2].pci.width == 16
    assert found[0].nvlinks == (NvLinks("0000:04:00.0", 4),)
    assert (found[0].name, found[0].memory) == ("Fake GPU 80GB", 80 << 30)


def test_links_to_a_switch_are_known_as_such_and_nvml_is_given_back(tmp_path: Path) -> None:
    nvml = fake.FakeNvml(fake.GPU_BUSES[:1], [{"0000:0f:00.0": 18}], frozenset({"0000:0f:00.0"}))
    found, _ = gpus.gpus(tmp_path, lambda: nvml)
    assert found[0].nvlinks == (NvLinks("0000:0f:00.0", 18, switch=True),)
    assert found[0].pci.bridges == ()  # sysfs does not show it here
    assert nvml.open == 0


def test_a_gpu_without_nvlink_has_none(tmp_path: Path) -> None:
    found, why = gpus.gpus(tmp_path, lambda: fake.FakeNvml(fake.GPU_BUSES))
    assert len(found) == 4 and why == "" and all(gpu.nvlinks == () for gpu in found)


def test_without_gpus_the_reason_is_said(tmp_path: Path) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert gpus.gpus(tmp_path, absent) == ((), "no NVIDIA driver is loaded (or the container does not show it)")
    fake.put(tmp_path, "proc/driver/nvidia/gpus/0000:03:00.0/information", "Model: x")
    assert "shows 1, but nvidia-ml-py is not installed" in gpus.gpus(tmp_path, absent)[1]
    broken = fake.FakeNvml([], fails="Driver Not Loaded")
    assert gpus.gpus(tmp_path, lambda: broken) == ((), "NVML cannot be used: Driver Not Loaded")
    assert broken.open == 0
    assert gpus.gpus(tmp_path, lambda: fake.FakeNvml([])) == ((), "NVML finds none")


def test_a_pair_of_nics_has_ports_with_the_gids_in_use(tmp_path: Path) -> None:
    fake.gpu_server(tmp_path)
    found, why = rdma.devices(tmp_path)
    assert why == "" and [device.name for device in found] == ["mlx5_0", "mlx5_1"]
    port = found[1].ports[0]
    assert (port.number, port.state, port.link_layer, port.rate, port.mtu) == (1, "ACTIVE", "Ethernet", 200.0, None)
    assert [(gid.index, gid.kind, gid.interface) for gid in port.gids] == [
        (0, "IB/RoCE v1", "eth2"),
        (3, "RoCE v2", "eth2"),
    ]
    assert found[0].pci is not None and found[0].pci.numa == 0


def test_verbs_add_mtu_and_limits_and_their_absence_is_said(tmp_path: Path) -> None:
    fake.gpu_server(tmp_path)
    found, _ = rdma.devices(tmp_path)
    asked, why = rdma.with_verbs(found, lambda: fake.FakeVerbs(["mlx5_0"]))
    assert asked[0].ports[0].mtu == 4096 and asked[0].limits is not None and asked[0].limits.max_sge == 30
    assert asked[1] == found[1] and why == "verbs do not show mlx5_1 (no access to /dev/infiniband?)"
    same, why = rdma.with_verbs(found, lambda: fake.FakeVerbs([], fails="Failed to get devices list"))
    assert same == found and "pyverbs cannot be used" in why and "Failed to get devices list" in why


def test_an_infiniband_port_has_a_lid(tmp_path: Path) -> None:
    device = fake.pci(tmp_path, f"{SWITCH}/0000:06:00.0", -1)
    fake.rdma(
        tmp_path, "mlx5_0", device, state="2: INIT", link_layer="InfiniBand", lid="0x1f", rate="400 Gb/sec (4X NDR)"
    )
    (found,), _ = rdma.devices(tmp_path)
    assert (found.ports[0].lid, found.ports[0].state, found.ports[0].rate) == (31, "INIT", 400.0)
    assert found.pci is not None and found.pci.numa is None


def test_a_container_without_rdma_says_so_and_asks_no_verbs(tmp_path: Path) -> None:
    found, why = rdma.devices(tmp_path)
    assert found == () and "no /sys/class/infiniband" in why and "container" in why
    assert rdma.with_verbs((), lambda: fake.FakeVerbs([], fails="must not be asked")) == ((), "")
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert "is empty" in rdma.devices(tmp_path)[1]


def test_interfaces_up_down_loopback_virtual(tmp_path: Path) -> None:
    nic = fake.pci(tmp_path, "pci0000:00/0000:00:03.0", 0)
    fake.interface(tmp_path, "eth0", nic, 25000, 9000)
    fake.interface(tmp_path, "eth1", up=False)
    fake.interface(tmp_path, "docker0", speed=-1)
    fake.interface(tmp_path, "lo", mtu=65536)
    found = {one.name: one for one in interfaces.interfaces({"eth0": (Address("10.0.0.1", 8),)}, tmp_path)}
    assert found["eth0"].up and found["eth0"].rate == 25.0 and found["eth0"].mtu == 9000
    assert found["eth0"].pci is not None and found["eth0"].addresses == (Address("10.0.0.1", 8),)
    assert not found["eth1"].up and found["eth1"].rate == 0.0
    assert found["docker0"].up and found["docker0"].rate == 0.0 and found["docker0"].pci is None
    assert found["lo"].loopback and found["lo"].up and not found["eth0"].loopback


def test_two_network_namespaces_of_one_kernel_are_two_machines(tmp_path: Path) -> None:
    fake.host(tmp_path / "a", "pod-a", network=1)
    fake.host(tmp_path / "b", "pod-a", network=2)
    ids = {machine.machine(machine.Sources(tmp_path / name, addresses=dict)).id for name in "aab"}
    assert len(ids) == 2
    assert host.identity(tmp_path / "a")["network"] == "net:[1]"
    unreadable = host.identity(tmp_path / "c")
    assert unreadable == {"hostname": socket.gethostname(), "boot_id": "", "network": ""}


def test_a_machine_holds_all_and_names_what_is_missing(tmp_path: Path) -> None:
    full = machine.machine(fake.gpu_server(tmp_path))
    assert (len(full.gpus), len(full.rdma), full.missing) == (4, 2, ())
    assert {one.name for one in full.interfaces} == {"lo", "eno1", "eth1", "eth2"}

    def refused() -> None:
        raise OSError("getifaddrs: Operation not permitted")

    bare = machine.machine(machine.Sources(tmp_path / "none", addresses=refused))  # type: ignore[arg-type]
    assert [missing.what for missing in bare.missing] == ["GPUs", "RDMA devices", "addresses"]


def test_on_this_machine_all_addresses_that_the_kernel_lists_are_found() -> None:
    found = addresses.addresses()
    ours = {(name, a.address, a.prefix) for name, each in found.items() for a in each if a.family == 6}
    lines = [line.split() for line in read.text(Path("/proc/net/if_inet6")).splitlines()]
    theirs = {(w[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(w[0])), int(w[2], 16)) for w in lines}
    assert ours == theirs
    trie = Path("/proc/net/fib_trie").read_text().split()
    local = {trie[i - 2] for i in range(len(trie)) if trie[i - 1 : i + 2] == ["/32", "host", "LOCAL"]}
    assert {a.address for each in found.values() for a in each if a.family == 4} == local
    assert set(found) <= {entry.name for entry in Path("/sys/class/net").iterdir()}


def test_on_this_machine_discovery_answers_whatever_is_there() -> None:
    found = machine.machine()
    assert found.hostname and parse_ranges(found.cores.online)
    for what, values in (("GPUs", found.gpus), ("RDMA devices", found.rdma)):
        assert values or any(missing.what == what and missing.why for missing in found.missing)
