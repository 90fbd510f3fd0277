"""Several hosts on one machine: network namespaces joined by veth pairs to a bridge. `scripts/net_lab` is the command.

       namespace of the lab: | bridge br0 |            cut(1) takes port1 down: host1's cable is out
                              port0    port1
                                |        |             each host: own network, host name, IPC, /dev/shm, /sys,
       namespaces of hosts:    eth0     eth0           /etc/hosts; with `own_pids` its own process ids too
                             10.77.0.1  10.77.0.2      (and fd77::1, fd77::2)

With `cables` more than one each host has eth1 (10.77.1.1, fd77:1::1), ... too, each on a bridge of its own.

Nothing has a name outside: no entry in /run/netns, no interface, no file. Each namespace is held by a process that
reads a pipe of ours, so when we end, killed or not, the holders end, and with the last process of a namespace the
kernel takes it and its interfaces away. With `own_pids` the holder is the first process of the host, whose end kills
all others there; without, whoever starts processes in a host sees to their end.

As Debian does it, a host's own name resolves to 127.0.1.1 there, which is of no use to the others.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
READY_SECONDS = 20.0
KINDS = ("user", "net", "uts", "ipc", "mnt")
"""Namespaces in the order in which a process enters them: the right to enter the others comes with the first."""
_FLAGS = {"user": 0x10000000, "net": 0x40000000, "uts": 0x04000000, "ipc": 0x08000000, "mnt": 0x00020000}

_HOST = """
set -e
hostname {name} 2>/dev/null || echo {name} > /proc/sys/kernel/hostname
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
printf '%s\\n' {lines} > /dev/shm/hosts
mount --bind /dev/shm/hosts /etc/hosts
rm /dev/shm/hosts
echo ready
exec cat > /dev/null
"""


class LabError(RuntimeError):
    """The machine cannot make the lab; the text says what failed."""


class Lab:
    """`hosts` hosts while the `with` block lasts. rate: what each may send by a cable, as tc writes it (`1gbit`); None:
    no limit. cables: networks that each host is on, one interface for each.

    own_pids: each host counts its processes from 1, as separate machines do. Threads: one at a time, but for `cut`.
    """

    def __init__(self, hosts: int = 2, rate: str | None = None, own_pids: bool = False, cables: int = 1) -> None:
        for name, value, most in (("hosts", hosts, 250), ("cables", cables, 8)):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}; allowed are 1 to {most}")
        self.hosts, self.rate, self.own_pids, self.cables = hosts, rate, own_pids, cables
        self._lab: subprocess.Popen[str] | None = None
        self._holders: list[subprocess.Popen[str]] = []
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @staticmethod
    def name(host: int) -> str:
        return f"host{host}"

    @staticmethod
    def address(host: int, family: int = 4, cable: int = 0) -> str:
        """family: 4 or 6."""
        return f"fd77:{cable:x}::{host + 1:x}".replace(":0:", ":") if family == 6 else f"10.77.{cable}.{host + 1}"

    def holder(self, host: int) -> int:
        """A process whose namespaces (/proc/PID/ns) are the host's; for `enter`."""
        return self._holders[host].pid

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on the host, in the present directory."""
        pid = self.holder(host)
        enter = ["nsenter", f"--target={pid}", "--net", "--uts", "--ipc", "--mount", f"--wd={Path.cwd()}"]
        if self.own_pids:
            enter += [f"--pid=/proc/{pid}/ns/pid_for_children"]
        return [*enter, *self._user(), "--", *command]

    def start(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a command on a host; options as of Popen. `close` kills it; with `own_pids` what it started too."""
        process = subprocess.Popen(self.command(host, command), **options)
        self._started.append(process)
        return process

    def cut(self, host: int) -> None:
        """Pulls the host's cables: nothing is refused or reset, packets just do not arrive any more."""
        self._in_lab("".join(f"ip link set port{host}c{cable} down\n" for cable in range(self.cables)))

    def mend(self, host: int) -> None:
        self._in_lab("".join(f"ip link set port{host}c{cable} up\n" for cable in range(self.cables)))

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._started.clear()
        holders = [*self._holders, *([self._lab] if self._lab else [])]
        for process in holders:
            assert process.stdin is not None
            process.stdin.close()  # cat ends, and the namespace with it
        for process in holders:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._holders.clear()
        self._lab = None

    def _make(self) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise LabError(f"the commands {', '.join(missing)} are not installed (Debian: iproute2, util-linux, mount)")
        root = [] if os.geteuid() == 0 else ["--map-root-user"]
        script = "echo ready; exec cat > /dev/null"
        self._lab = _held(["unshare", *root, "--net", "--mount", "--", "sh", "-c", script])
        bridges = (f"ip link add br{c} type bridge\nip link set br{c} up\n" for c in range(self.cables))
        self._in_lab("ip link set lo up\n" + "".join(bridges))
        for host in range(self.hosts):
            self._make_host(host)

    def _make_host(self, host: int) -> None:
        own = [("127.0.0.1", "localhost"), ("::1", "localhost ip6-localhost"), ("127.0.1.1", self.name(host))]
        others = [(self.address(peer), self.name(peer)) for peer in range(self.hosts) if peer != host]
        lines = " ".join(f"'{address} {names}'" for address, names in [*own, *others])
        script = _HOST.format(name=self.name(host), lines=lines)
        assert self._lab is not None
        enter = ["nsenter", f"--target={self._lab.pid}", "--net", "--mount", *self._user()]
        apart = ["unshare", "--net", "--uts", "--ipc", "--mount"]
        if self.own_pids:
            apart += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holders.append(_held([*enter, *apart, "--", "sh", "-c", script]))
        inside = "ip link set lo up\n" + "".join(self._plug(host, cable) for cable in range(self.cables))
        enter = ["nsenter", f"--target={self.holder(host)}", "--net", *self._user()]
        _run([*enter, "--", "sh", "-ec", inside])

    def _plug(self, host: int, cable: int) -> str:
        """Joins the host to a bridge; gives the script that is left to run on the host."""
        port, own = f"port{host}c{cable}", f"eth{cable}"
        self._in_lab(
            f"ip link add {port} type veth peer name {own} netns {self.holder(host)}\n"
            f"ip link set {port} master br{cable} up"
        )
        inside = "".join(
            f"ip addr add {self.address(host, family, cable)}/{bits} dev {own} {more}\n"
            for family, bits, more in ((4, 24, ""), (6, 64, "nodad"))
        )
        # Without detection of duplicates the addresses, also the link-local one, may be used at once.
        inside += f"echo 0 > /proc/sys/net/ipv6/conf/{own}/accept_dad || true\nip link set {own} up\n"
        if self.rate is not None:
            # The burst is what 10 ms of 1 Gbit/s are.
            inside += f"tc qdisc add dev {own} root tbf rate {self.rate} burst 1250kb latency 50ms\n"
        return inside

    def _in_lab(self, script: str) -> None:
        assert self._lab is not None
        _run(["nsenter", f"--target={self._lab.pid}", "--net", *self._user(), "--", "sh", "-ec", script])

    @staticmethod
    def _user() -> list[str]:
        return [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]


def why_not() -> str:
    """'' if this machine can make a lab, else the reason: it tries, with one host and a limit."""
    try:
        with Lab(hosts=1, rate="1gbit"):
            return ""
    except LabError as error:
        return f"no network namespaces here: {error}"


def enter(holder: int) -> None:
    """Moves this process, which must have one thread, into the namespaces of a holder (process ids stay the same)."""
    files = [(kind, os.open(f"/proc/{holder}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)) for kind in KINDS]
    here = os.getcwd()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for kind, file in files:
            if kind == "user" and os.path.samestat(os.fstat(file), os.stat("/proc/self/ns/user")):
                continue  # the kernel refuses to enter the one we are in
            if libc.setns(file, _FLAGS[kind]) != 0:
                error = ctypes.get_errno()
                raise OSError(error, f"setns({kind}): {os.strerror(error)}")
    finally:
        for _, file in files:
            os.close(file)
    os.chdir(here)


def _held(command: list[str]) -> subprocess.Popen[str]:
    """Starts a holder and waits for its word."""
    pipe = subprocess.PIPE
    # A group of its own: Ctrl-C is for us, who then end the holders in order.
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if line == "ready\n":
            return process
        said.append(line.strip())
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    raise LabError("; ".join(said) or f"{command[0]} ended with status {process.returncode}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=READY_SECONDS)
    if done.returncode != 0:
        raise LabError(done.stderr.strip() or f"{' '.join(command)} ended with status {done.returncode}")


def _ended(signum: int, _: object) -> None:
    raise SystemExit(128 + signum)


def end_with_signals() -> None:
    """SIGTERM and SIGHUP end the program in order, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
