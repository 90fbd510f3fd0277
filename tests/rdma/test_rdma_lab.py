"""The RDMA lab keeps its promises: nodes are apart, faults are faults, statuses and files come back, nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab_nodes import SCRIPTS, port_state, run, shell, why_not
from rdma_lab import RdmaLab, RdmaLabError
from rdma_lab_job import LOST

pytestmark = pytest.mark.ci


def test_each_node_has_its_own_name_memory_network_and_processes(rdma_lab: RdmaLab) -> None:
    script = "touch /dev/shm/$(hostname); ls /dev/shm; ls /sys/class/net; cat /proc/*/comm | grep -c rdma_lab || true"
    for node in range(2):
        assert shell(rdma_lab, node, script).split() == [f"host{node}", "eth0", "lo", "0"]
        assert shell(rdma_lab, node, "rm /dev/shm/host*; hostname") == f"host{node}"


def test_each_node_is_told_its_device_and_both_addresses(rdma_lab: RdmaLab) -> None:
    script = "echo $NODE_RANK $NNODES $NODE_IP $RDMA_IP $RDMA_IPS $RDMA_DEVICE $RDMA_GID_INDEX $MASTER_ADDR"
    for node in range(2):
        own, other = f"10.77.0.{node + 1}", f"10.78.0.{node + 1}"
        both = "10.78.0.1,10.78.0.2"
        wanted = f"{node} 2 {own} {other} {both} {rdma_lab.device(node)} {rdma_lab.gid(node)} 10.77.0.1"
        assert shell(rdma_lab, node, script) == wanted


def test_the_gid_that_a_node_is_told_is_its_addresss_and_roce_v2(rdma_lab: RdmaLab) -> None:
    for node in range(2):
        port = f"/sys/class/infiniband/{rdma_lab.device(node)}/ports/1"
        index = rdma_lab.gid(node)
        script = f"cat {port}/gids/{index} {port}/gid_attrs/types/{index} {port}/state"
        gid, kind, state = shell(rdma_lab, node, script).split("\n")
        assert gid == f"0000:0000:0000:0000:0000:ffff:0a4e:000{node + 1}"
        assert (kind, state) == ("RoCE v2", "4: ACTIVE")


def test_statuses_output_and_files_come_back(rdma_lab: RdmaLab) -> None:
    job = rdma_lab.start(1, ["sh", "-c", "echo one; echo two >&2; echo three > $OUT/file; exit 3"], 60)
    assert (job.wait(90), list(job.stdout)) == (3, ["one\n", "two\n"])
    assert (rdma_lab.out(1) / "file").read_text() == "three\n"
    assert rdma_lab.start(0, ["sleep", "60"], 1.0).wait(60) == 124
    assert rdma_lab.start(0, ["/no/such/program"], 60).wait(60) not in (0, 124, LOST)
    assert run(rdma_lab, 0, "sh", "-c", "echo $COLOUR", env={"COLOUR": "green"}) == "green\n"


def test_what_a_node_writes_is_not_written_on_this_machine(rdma_lab: RdmaLab, tmp_path: Path) -> None:
    if "guest" not in rdma_lab.described:
        pytest.skip("on this machine's own kernel, files are this machine's")
    assert shell(rdma_lab, 0, f"mkdir -p {tmp_path}; echo hello > {tmp_path}/file; cat {tmp_path}/file") == "hello"
    assert not (tmp_path / "file").exists()


def test_a_killed_node_loses_its_processes_and_no_other_does(rdma_lab: RdmaLab) -> None:
    victim = rdma_lab.start(1, ["sh", "-c", "setsid sleep 1000 & sleep 1000"], 200)
    other = rdma_lab.start(0, ["sleep", "1000"], 200)
    # Not by name: a killed process keeps that until its parent has looked.
    count = "grep -ls 'slee[p]' /proc/[0-9]*/cmdline | wc -l"
    end = time.monotonic() + 30
    while (seen := shell(rdma_lab, 1, count)) != "3" and time.monotonic() < end:
        time.sleep(0.2)
    assert seen == "3"  # the shell too
    rdma_lab.fault("kill", 1)
    assert victim.wait(30) == 128 + signal.SIGKILL
    assert shell(rdma_lab, 1, count) == "0" and other.poll() is None
    rdma_lab.fault("kill", 0, "TERM")
    assert other.wait(30) == 128 + signal.SIGTERM


def test_a_link_that_is_down_is_down_on_that_node_only_and_comes_back(rdma_lab: RdmaLab) -> None:
    rdma_lab.fault("link", 1, "down")
    try:
        assert "DOWN" in port_state(rdma_lab, 1) and "ACTIVE" in port_state(rdma_lab, 0)
    finally:
        rdma_lab.fault("link", 1, "up")
    assert "ACTIVE" in port_state(rdma_lab, 1)


def test_faults_can_be_asked_for_from_inside(rdma_lab: RdmaLab) -> None:
    """In Python, and by a command."""
    program = "from rdma_lab_ctl import ask; print(ask('link', 0, 'down')); print(ask('link', 0, 'up'));"
    program += "print(ask('netem', 1, 'loss', '1%')); print(ask('netem', 1, 'off')); print(ask('counters', 1))"
    said = run(rdma_lab, 1, sys.executable, "-E", "-S", "-c", f"import sys; sys.path.append('{SCRIPTS}'); {program}")
    down, up, loss, none, counters = said.strip().split("\n")
    assert "DOWN" in down and "ACTIVE" in up and "netem" in loss and "loss 1%" in loss and "netem" not in none
    assert json.loads(counters)["sent_pkts"] >= 0
    job = rdma_lab.start(0, ["sh", "-c", "$RDMA_LAB_CTL link 1 sideways"], 60)
    assert job.wait(90) == 1 and "link 1 sideways" in job.text()


@pytest.mark.parametrize(
    "words", [("link", 7, "down"), ("link", 1, "sideways"), ("spill", 1), ("netem", 0, "nonsense"), ()]
)
def test_what_is_not_understood_is_refused_with_the_words(rdma_lab: RdmaLab, words: tuple[object, ...]) -> None:
    with pytest.raises(RdmaLabError) as refused:
        rdma_lab.fault(*words)
    assert " ".join(map(str, words)) in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kernels": 3}, "kernels is 3"),
        ({"kernels": 2, "hosts": 3}, "for 3 nodes"),
        ({"where": "moon"}, "auto, guest, here"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RdmaLab(**options)  # type: ignore[arg-type]


def marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and int(folder.name) != os.getpid() and mark in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_guest_and_folder_end_with_the_command_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    if why_not():
        pytest.skip(why_not())
    command = [str(SCRIPTS / "rdma_lab"), "run", "--where", "guest", "--", "sleep", "100"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)})
    end = time.monotonic() + 60
    while not marked(f"path={tmp_path}") and time.monotonic() < end:
        time.sleep(0.1)
    assert marked(f"path={tmp_path}"), "QEMU was not seen"
    process.send_signal(number)
    process.wait(30)
    end = time.monotonic() + 10
    while (marked(str(tmp_path)) or any(tmp_path.iterdir())) and time.monotonic() < end:
        time.sleep(0.1)
    assert marked(str(tmp_path)) == []
    assert not any(tmp_path.iterdir())


@pytest.mark.long
def test_a_lab_on_ones_own_kernel_works_where_the_module_is_there_and_leaves_nothing(rdma_lab: RdmaLab) -> None:
    """The guest is such a machine: a lab in the lab."""
    command = f"{sys.executable} {SCRIPTS}/rdma_lab_run.py run --where here"
    script = f"{command} -- sh -c 'echo {{device}} $RDMA_IP; exit {{host}}'"
    before = shell(rdma_lab, None, "ls /sys/class/net /sys/class/infiniband")
    job = rdma_lab.start(None, ["sh", "-c", script], 240)
    assert job.wait(250) == 1, job.text()
    said = sorted(line for line in job.text().splitlines() if line.startswith("[host"))
    assert said == ["[host0] labrxe0 10.79.0.1", "[host1] labrxe1 10.79.0.2"]
    assert shell(rdma_lab, None, "ls /sys/class/net /sys/class/infiniband") == before
