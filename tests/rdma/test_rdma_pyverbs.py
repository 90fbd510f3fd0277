"""pyverbs: the self-test of a device, the link into an environment, and that all else works without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pyverbs_link
import rdma_lab_setup
from lab_nodes import SCRIPTS
from rdma_lab import RdmaLab
from ringcomm.discover import rdma_loopback
from ringcomm.discover.rdma_loopback import best_gid, loopback
from ringcomm.topology.facts import Gid, Port, Rdma

pytestmark = pytest.mark.ci

SYSTEM_PYTHON = "/usr/bin/python3"
"""The distribution's pyverbs is for the distribution's Python; it has no torch, which the self-test does not need."""
GIDS = (
    Gid(0, "fe80::1", "RoCE v2"),
    Gid(1, "0000:0000:0000:0000:0000:ffff:0a4e:0001", "IB/RoCE v1"),
    Gid(2, "0000:0000:0000:0000:0000:ffff:0a4e:0001", "RoCE v2"),
)


def test_each_device_sends_itself_a_message_and_a_port_that_is_down_is_named(rdma_lab: RdmaLab) -> None:
    if not pyverbs_link.SYSTEM.is_dir():
        pytest.skip(f"no pyverbs here ({pyverbs_link.INSTALL})")
    root = str(Path(__file__).resolve().parents[2])
    command = [SYSTEM_PYTHON, "-W", "ignore", "-m", "ringcomm", "rdma"]
    rdma_lab.fault("link", 1, "down")
    try:
        job = rdma_lab.start(0, command, 200, {"PYTHONPATH": root})
        assert job.wait(230) == 1, job.text()
    finally:
        rdma_lab.fault("link", 1, "up")
    good, bad = (line for line in job.text().splitlines() if " port 1: " in line)
    assert good.startswith(f"{rdma_lab.device(0)} port 1: ACTIVE, Ethernet, MTU 4096, GID {rdma_lab.gid(0)} (RoCE v2 ")
    assert good.endswith(": loopback good")
    assert bad.startswith(f"{rdma_lab.device(1)} port 1: DOWN") and bad.endswith("the port is DOWN, not ACTIVE")


def test_the_gid_of_a_job_is_taken() -> None:
    assert best_gid(Port(1, "ACTIVE", "Ethernet", gids=GIDS)) == GIDS[2]
    assert best_gid(Port(1, "ACTIVE", "Ethernet", gids=GIDS[:2])) == GIDS[0]
    assert best_gid(Port(1, "ACTIVE", "Ethernet")) is None


@pytest.mark.parametrize(
    ("port", "gid", "why"),
    [
        (2, GIDS[2], "no port 2"),
        (3, GIDS[2], "INIT, not ACTIVE"),
        (1, None, "no GID"),
        (1, GIDS[2], "pyverbs cannot be"),
    ],
)
def test_why_a_device_cannot_be_tested_is_said(
    port: int, gid: Gid | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "pyverbs.addr", None)
    device = Rdma("mlx5_0", (Port(1, "ACTIVE", "Ethernet", gids=GIDS), Port(3, "INIT", "Ethernet")))
    assert why in loopback(device, port, gid)


class Completion:
    def __init__(self, status: int) -> None:
        self.status = status


class Queue:
    """Gives so many completions, then none."""

    def __init__(self, *statuses: int) -> None:
        self.left = list(statuses)

    def poll(self, most: int) -> tuple[int, list[Completion]]:
        return (1, [Completion(self.left.pop(0))]) if self.left else (0, [])


def test_a_completion_that_is_bad_or_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_loopback, "SECONDS", 0.05)

    class Verbs:
        class enums:
            IBV_WC_SUCCESS = 0

    assert rdma_loopback._completed(Queue(0, 0), Verbs) == ""
    assert "status 12" in rdma_loopback._completed(Queue(0, 12), Verbs)
    assert "1 of 2 completions" in rdma_loopback._completed(Queue(0), Verbs)


def test_the_link_is_made_only_where_pyverbs_fits_and_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    link, system = tmp_path / "site" / "pyverbs", tmp_path / "system" / "pyverbs"
    link.parent.mkdir()
    assert "apt-get install python3-pyverbs" in pyverbs_link.linked(link, system)
    system.mkdir(parents=True)
    (system / "device.cpython-39-x86_64-linux-gnu.so").touch()
    assert "compiled for another Python" in pyverbs_link.linked(link, system)
    (system / f"device{pyverbs_link.sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    monkeypatch.setattr(pyverbs_link, "why_not_imported", lambda: "it cannot be imported: no library")
    assert "no library" in pyverbs_link.linked(link, system) and not link.is_symlink()
    monkeypatch.setattr(pyverbs_link, "why_not_imported", lambda: "")
    assert pyverbs_link.linked(link, system) == "" and link.resolve() == system
    link.unlink()
    link.mkdir()
    assert "no link" in pyverbs_link.linked(link, system) and not link.is_symlink()


def test_the_link_is_refused_outside_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert "no virtual environment" in pyverbs_link.linked(tmp_path / "pyverbs", tmp_path)


def test_what_is_missing_for_a_lab_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(rdma_lab_setup.shutil, "which", lambda *_, **__: None)
    said = rdma_lab_setup.missing()
    assert "qemu-system-x86_64" in said and "apt-get install" in said and "ibverbs-utils" in said
    assert "qemu" not in rdma_lab_setup.missing(guest=False)
    assert (SCRIPTS / "rdma_lab").exists() and "scripts/rdma_lab setup" in said
