"""The devices of the lab carry data, shown by the tools that everybody knows, none of them ours.

What they measure is written to build/rdma_figures.json: emulated, and not to be compared with anything but other
figures of the same boot.
"""

from __future__ import annotations

import json
import re

import pytest

from lab_nodes import run, shell
from rdma_figures import ends, record, write_bandwidth, write_latency
from rdma_lab import RdmaLab


def sent(lab: RdmaLab, node: int) -> int:
    counted: dict[str, int] = json.loads(lab.fault("counters", node))
    return counted["sent_pkts"]


def test_every_node_sees_the_devices_of_all_nodes(rdma_lab: RdmaLab) -> None:
    for node in range(2):
        said = run(rdma_lab, node, "ibv_devinfo")
        assert re.findall(r"hca_id:\s+(\S+)", said) == [rdma_lab.device(n) for n in range(2)]
        assert said.count("PORT_ACTIVE") == 2 and said.count("active_mtu:\t\t4096") == 2


def test_a_ping_pong_with_checked_data_crosses_the_wire(rdma_lab: RdmaLab) -> None:
    before = [sent(rdma_lab, node) for node in range(2)]

    for said in ends(rdma_lab, "ibv_rc_pingpong", "-n", "200", "-s", "4096", "-c", says="local address"):
        assert re.search(r"200 iters in", said), said
        assert "invalid" not in said
    assert all(sent(rdma_lab, node) - before[node] >= 200 for node in range(2))


def test_netem_acts_on_what_the_devices_send(rdma_lab: RdmaLab) -> None:
    """With every packet lost, a ping-pong cannot end: so the traffic really takes the interfaces that faults act on."""
    rdma_lab.fault("netem", 0, "loss", "100%")
    try:
        options = ["-g", str(rdma_lab.gid(0)), "-n", "5"]
        server = rdma_lab.start(0, ["stdbuf", "-oL", "ibv_rc_pingpong", "-d", rdma_lab.device(0), *options], 60)
        for line in server.stdout:
            if "local address" in line:
                break
        client = rdma_lab.start(1, ["ibv_rc_pingpong", "-d", rdma_lab.device(1), *options, rdma_lab.address(0)], 5)
        assert client.wait(60) == 124, client.text()
        server.kill()
        server.wait(30)
    finally:
        rdma_lab.fault("netem", 0, "off")


@pytest.mark.parametrize("size", [65536, 1 << 20])
def test_write_bandwidth_is_measured(rdma_lab: RdmaLab, size: int) -> None:
    before = sent(rdma_lab, 1)
    rate, count = write_bandwidth(rdma_lab, size)
    assert rate > 0 and sent(rdma_lab, 1) - before >= count * size >> 12, "a packet holds 4096 bytes at most"
    record(rdma_lab, f"ib_write_bw {size} B", rate, "MB/s")


def test_write_latency_is_measured(rdma_lab: RdmaLab) -> None:
    record(rdma_lab, "ib_write_lat 64 B, typical", write_latency(rdma_lab, 64), "us")


def test_counters_can_be_read(rdma_lab: RdmaLab) -> None:
    for node in range(2):
        assert {"sent_pkts", "rcvd_pkts", "send_err", "retry_exceeded_err"} <= set(
            json.loads(rdma_lab.fault("counters", node))
        )
        there = shell(rdma_lab, node, "ls $RDMA_LAB_SYS/class/infiniband/$RDMA_DEVICE/ports/1/hw_counters")
        assert "sent_pkts" in there.split()
