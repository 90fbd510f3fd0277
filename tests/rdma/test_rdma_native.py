"""The contract of the verbs connections over real devices: the native tests, built here, run on a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import native
import pyverbs_link
from lab_nodes import run, wait_for
from rdma_figures import record, write_bandwidth, write_latency
from rdma_lab import RdmaLab
from test_rdma_pyverbs import SYSTEM_PYTHON

pytestmark = pytest.mark.ci

TESTS = {"connection_test": ["verbs", "shm+verbs"], "verbs_test": []}
"""The programs, and the kinds that they are to try."""
PROGRAMS = sorted([*TESTS, "verbs_partner_test", "verbs_speed_test"])
LIMIT = 400.0


@pytest.fixture(scope="module")
def built() -> Iterator[dict[str, Path]]:
    todo = [p for p in native.programs(["plain"], None) if p.name in PROGRAMS]
    assert sorted(p.name for p in todo) == PROGRAMS
    assert native.build(todo)
    yield {p.name: p.binary for p in todo}


def device_env(lab: RdmaLab) -> dict[str, str]:
    devices = ",".join(lab.device(node) for node in range(2))
    return {"RINGCOMM_TEST_VERBS_DEVICE": devices, "RINGCOMM_TEST_VERBS_GID": str(lab.gid(0))}


@pytest.mark.parametrize("name", TESTS)
def test_the_native_test_passes_over_the_devices(rdma_lab: RdmaLab, built: dict[str, Path], name: str) -> None:
    run(rdma_lab, 0, str(built[name]), *TESTS[name], timeout=LIMIT, env=device_env(rdma_lab))


def test_the_speed_of_a_connection_is_measured_beside_perftests(rdma_lab: RdmaLab, built: dict[str, Path]) -> None:
    """Aims: half of ib_write_bw at least, three times ib_write_lat at most. They are recorded, not asserted."""
    said = run(rdma_lab, 0, str(built["verbs_speed_test"]), timeout=LIMIT, env=device_env(rdma_lab))
    found = {(row[1], int(row[2])): float(row[3]) for row in re.finditer(r"(\w+) (\d+) (\S+) (?:MB/s|us)", said)}
    for size in (65536, 1 << 20):
        theirs, _ = write_bandwidth(rdma_lab, size)
        record(rdma_lab, f"connection, {size} B", found["bandwidth", size], "MB/s")
        record(rdma_lab, f"connection / ib_write_bw, {size} B", found["bandwidth", size] / theirs, "")
        record(rdma_lab, f"the same with 16 slots, {size} B", found["bandwidth_16_slots", size] / theirs, "")
    record(rdma_lab, "connection, 64 B there", found["latency", 64], "us")
    record(rdma_lab, "connection / ib_write_lat, 64 B", found["latency", 64] / write_latency(rdma_lab, 64), "")


def test_an_independent_peer_understands_our_connections(rdma_lab: RdmaLab, built: dict[str, Path]) -> None:
    """pyverbs_peer.py, written from the documents, talks to a program of ours on the other node."""
    if not pyverbs_link.SYSTEM.is_dir():
        pytest.skip(f"no pyverbs here ({pyverbs_link.INSTALL})")
    peer, file = Path(__file__).with_name("pyverbs_peer.py"), rdma_lab.out(1) / "partner"
    rdma_lab.out(1).mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    python = f"exec {SYSTEM_PYTHON} {peer} $RDMA_DEVICE $RDMA_GID_INDEX $OUT/partner"
    theirs = rdma_lab.start(1, ["sh", "-c", python], LIMIT)
    port = wait_for(theirs, "port ").split()[1]
    env = {**device_env(rdma_lab), "RINGCOMM_TEST_VERBS_DEVICE": rdma_lab.device(0)}
    ours = rdma_lab.start(0, [str(built["verbs_partner_test"]), f"{rdma_lab.address(1)}:{port}"], LIMIT, env)
    half = file.with_name("partner-half")
    half.write_text(f"{rdma_lab.address(0)}:{wait_for(ours, 'port ').split()[1]}")
    half.rename(file)
    statuses = theirs.wait(LIMIT + 30), ours.wait(LIMIT + 30)
    assert statuses == (0, 0), f"{statuses}\n{theirs.text()}\n---\n{ours.text()}"
    assert "70 messages each way" in theirs.text() and "70 messages each way" in ours.text()
