"""The devices of the lab carry data, shown by the tools that everybody knows, none of them ours.

What they measure is written to build/rdma_figures.json: emulated, and not to be compared with anything but other
figures of the same boot.
"""

from __future__ import annotations

import json
import re

import pytest

from rdma_figures import record
from rdma_lab import RdmaLab
from rdma_nodes import pair, run, shell


def ends(lab: RdmaLab, program: str, *options: str, says: str) -> tuple[str, str]:
    """Both ends of a program of ibverbs-utils or perftest; the client dials the first node over TCP."""
    # Line by line: else nothing is said into a pipe before the end.
    first, second = [["stdbuf", "-oL", program, "-d", lab.device(n)] for n in range(2)]
    index = "-g" if program.startswith("ibv_") else "-x"
    first += [index, str(lab.gid(0)), *options]
    second += [index, str(lab.gid(1)), *options, lab.address(0)]
    return pair(lab, first, second, says)


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


@pytest.mark.parametrize("bytes_", [65536, 1 << 20])
def test_write_bandwidth_is_measured(rdma_lab: RdmaLab, bytes_: int) -> None:
    count = (16 << 20) // bytes_
    begin = [sent(rdma_lab, node) for node in range(2)]
    said = ends(rdma_lab, "ib_write_bw", "-s", str(bytes_), "-n", str(count), "-F", says="Waiting for client")[1]
    row = re.search(rf"^ {bytes_}\s+{count}\s+(\S+)\s+(\S+)", said, re.M)
    assert row, said
    record(rdma_lab, f"ib_write_bw {bytes_} B", float(row[2]), "MiB/s")
    packets = sent(rdma_lab, 1) - begin[1]
    assert packets >= 16 << 20 >> 12, "a packet holds 4096 bytes at most"


def test_write_latency_is_measured(rdma_lab: RdmaLab) -> None:
    said = ends(rdma_lab, "ib_write_lat", "-s", "64", "-n", "1000", "-F", says="Waiting for client")[1]
    row = re.search(r"^ 64\s+1000\s+(\S+)\s+(\S+)\s+(\S+)", said, re.M)
    assert row, said
    record(rdma_lab, "ib_write_lat 64 B, typical", float(row[3]), "us")


def test_counters_can_be_read(rdma_lab: RdmaLab) -> None:
    for node in range(2):
        assert {"sent_pkts", "rcvd_pkts", "send_err", "retry_exceeded_err"} <= set(
            json.loads(rdma_lab.fault("counters", node))
        )
        there = shell(rdma_lab, node, "ls $RDMA_LAB_SYS/class/infiniband/$RDMA_DEVICE/ports/1/hw_counters")
        assert "sent_pkts" in there.split()
