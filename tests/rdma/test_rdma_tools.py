"""The devices of the lab carry data, shown by the tools that everybody knows, none of them ours.

What they measure is written to build/rdma_figures.json: emulated, and not to be compared with anything but other
figures of the same boot.
"""

from __future__ import annotations

import json
import re
import time

import pytest

from lab_nodes import run, shell, wait_for
from rdma_figures import ends, record, write_bandwidth, write_latency
from rdma_lab import RdmaLab

pytestmark = pytest.mark.ci


def counted(lab: RdmaLab, node: int, what: str) -> int:
    found: dict[str, int] = json.loads(lab.fault("counters", node))
    return found[what]


def sent(lab: RdmaLab, node: int) -> int:
    return counted(lab, node, "sent_pkts")


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
    """With every packet of one node lost the other's device hears no more of a ping-pong under way: so the traffic
    really takes the interfaces that faults act on. (Lost from its beginning on, it may not even find its peer.)"""
    options = ["-g", str(rdma_lab.gid(0)), "-n", "100000000", "-s", "64"]
    program = ["stdbuf", "-oL", "ibv_rc_pingpong", "-d"]
    jobs = [rdma_lab.start(0, [*program, rdma_lab.device(0), *options], 100)]
    try:
        wait_for(jobs[0], "local address")
        jobs.append(rdma_lab.start(1, [*program, rdma_lab.device(1), *options, rdma_lab.address(0)], 100))
        wait_for(jobs[1], "remote address")
        first = counted(rdma_lab, 1, "rcvd_pkts")
        while counted(rdma_lab, 1, "rcvd_pkts") < first + 5:
            assert jobs[1].poll() is None, jobs[1].text()
        rdma_lab.fault("netem", 0, "loss", "100%")
        time.sleep(0.5)  # what was under way has come
        silent = counted(rdma_lab, 1, "rcvd_pkts")
        time.sleep(2)
        assert counted(rdma_lab, 1, "rcvd_pkts") == silent
        assert [job.poll() for job in jobs] == [None, None]
    finally:
        rdma_lab.fault("netem", 0, "off")
        for job in jobs:
            job.kill()
            job.wait(30)


@pytest.mark.parametrize("size", [65536, 1 << 20])
def test_write_bandwidth_is_measured(rdma_lab: RdmaLab, size: int) -> None:
    before = sent(rdma_lab, 1)
    rate, count = write_bandwidth(rdma_lab, size)
    assert rate > 0 and sent(rdma_lab, 1) - before >= count * size >> 12, "a packet holds 4096 bytes at most"
    record(rdma_lab, f"ib_write_bw {size} B", rate, "MB/s")


def test_write_latency_is_measured(rdma_lab: RdmaLab) -> None:
    record(rdma_lab, "ib_write_lat 64 B, mean", write_latency(rdma_lab, 64), "us")


def test_counters_can_be_read(rdma_lab: RdmaLab) -> None:
    for node in range(2):
        assert {"sent_pkts", "rcvd_pkts", "send_err", "retry_exceeded_err"} <= set(
            json.loads(rdma_lab.fault("counters", node))
        )
        there = shell(rdma_lab, node, "ls $RDMA_LAB_SYS/class/infiniband/$RDMA_DEVICE/ports/1/hw_counters")
        assert "sent_pkts" in there.split()
