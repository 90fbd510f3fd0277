"""The lab keeps its own promises: hosts are apart, limits limit, a cut cable is silent, nothing outlives a kill."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab_ranks import SCRIPTS, lab, run_on, why_not
from net_lab import Lab
from ringcomm.discover.addresses import addresses
from ringcomm.discover.host import identity
from ringcomm.discover.interfaces import interfaces


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with lab(2) as made:
        yield made


def seen(rank: int, world: int) -> tuple[str, str, str, list[str], list[str]]:
    names = [one.name for one in interfaces(addresses())]
    (eth,) = (one for one in interfaces(addresses()) if one.name == "eth0")
    Path(f"/dev/shm/rank{rank}").touch()
    found = [socket.gethostbyname(name) for name in ("host0", "host1")]
    return (
        identity()["hostname"],
        identity()["network"],
        f"{sorted(names)} {sorted(os.listdir('/dev/shm'))}",
        found,
        [a.address for a in eth.addresses if not a.address.startswith("fe80")],
    )


def test_each_host_has_its_own_name_network_memory_and_interfaces(two: Lab) -> None:
    one, other = run_on(two, 1, seen)
    assert (one[0], other[0]) == ("host0", "host1") and one[1] != other[1]
    assert (one[2], other[2]) == ("['eth0', 'lo'] ['rank0']", "['eth0', 'lo'] ['rank1']")
    assert one[3] == ["127.0.1.1", "10.77.0.2"] and other[3] == ["10.77.0.1", "127.0.1.1"]
    assert one[4] == ["10.77.0.1", "fd77::1"] and other[4] == ["10.77.0.2", "fd77::2"]
    assert not list(Path("/dev/shm").glob("rank[01]"))


def carried(rank: int, world: int, family: int, port: int, seconds: float) -> float:
    """Bytes per second from host 1 to host 0; 0 where nothing came through."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    if rank == 0:
        with socket.create_server((Lab.address(0, family), port), family=kind) as server:
            server.settimeout(10)
            with server.accept()[0] as peer:
                peer.settimeout(2)
                began, count = time.monotonic(), 0
                try:
                    while data := peer.recv(1 << 20):
                        count += len(data)
                except TimeoutError:
                    return 0.0
                return count / (time.monotonic() - began)
    with socket.socket(kind) as peer:
        for _ in range(100):
            if peer.connect_ex((Lab.address(0, family), port)) == 0:
                break
            time.sleep(0.05)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            peer.sendall(bytes(1 << 16))
    return 0.0


def test_hosts_reach_each_other_over_both_families(two: Lab) -> None:
    for family in (4, 6):
        assert run_on(two, 1, carried, family, 4000 + family, 0.2)[0] > 0


def test_what_a_host_sends_is_limited() -> None:
    with lab(2, rate="80mbit") as made:
        rate = run_on(made, 1, carried, 4, 4000, 2.0)[0]
    assert 0.7 * 10e6 < rate < 1.4 * 10e6


def test_a_cut_cable_is_silent_and_can_be_mended(two: Lab) -> None:
    def ping(wait: float) -> bool:
        code = f"import socket; socket.create_connection(('{two.address(0)}', 4100), {wait})"
        return two.start(1, [sys.executable, "-c", code], stderr=subprocess.DEVNULL).wait() == 0

    code = f"import socket, time; s = socket.create_server(('{two.address(0)}', 4100)); time.sleep(60)"
    two.start(0, [sys.executable, "-c", code])
    assert any(ping(1.0) for _ in range(50))
    two.cut(1)
    assert not ping(1.0)
    two.mend(1)
    assert any(ping(3.0) for _ in range(5))


def marked(mark: str) -> list[int]:
    """The processes that carry a mark in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_command_however_it_ends(number: signal.Signals) -> None:
    if why_not():
        pytest.skip(why_not())
    mark = f"lab-mark-{os.getpid()}-{number}"
    # A daemon too: it leaves the session of the command.
    script = f": {mark}; setsid sh -c ': {mark}; sleep 100; :' & sleep 100; :"
    run = subprocess.Popen([sys.executable, SCRIPTS / "net_lab_run.py", "--", "sh", "-c", script])
    deadline = time.monotonic() + 20
    while len(marked(mark)) < 6 and time.monotonic() < deadline:  # our two hosts' shells, daemons, and the command
        time.sleep(0.1)
    assert len(marked(mark)) >= 5
    run.send_signal(number)
    run.wait(20)
    deadline = time.monotonic() + 5
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked(mark) == []


def test_the_command_shows_who_said_what_and_passes_on_a_failure() -> None:
    if why_not():
        pytest.skip(why_not())
    command = [str(SCRIPTS / "net_lab"), "--hosts", "3", "--", "sh", "-c", "echo I am {name} at {address}; exit {host}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    lines = sorted(done.stdout.splitlines())
    assert lines == [f"[host{h}] I am host{h} at 10.77.0.{h + 1}" for h in range(3)], done.stderr
