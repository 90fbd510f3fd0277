"""What an RDMA lab runs on: a QEMU guest, or this machine itself; either way a process and a channel to its agent.

Both end with us however we end: QEMU is killed by the kernel with the thread that started it, and the agent ends when
the channel does.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdma_lab_channel import Channel
from rdma_lab_kernel import SHARE, Kernel, cache_folder

SCRIPTS = Path(__file__).resolve().parent
PORT_NAME = "ringcomm.rdma_lab"
# no_timer_check: an emulated timer that a busy host serves late is taken for a broken one. mitigations=off: they cost
# a lot where every instruction is emulated. No tsc=reliable: the guest's clock then ran 60 % fast on a busy host.
APPEND = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on"


class Machine:
    """A started one. `last` holds the end of what it said on its console."""

    def __init__(self, command: Sequence[str], channel: socket.socket, descriptors: Sequence[int]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C is for us, who then end it in order
        )
        self._socket = channel
        self.channel = Channel(channel.fileno())
        self.last: deque[str] = deque(maxlen=40)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self, seconds: float = 10.0) -> None:
        """In order if it can in that time, else killed."""
        self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(1)
        self._socket.close()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last.append(line.decode(errors="replace").rstrip())


class TemporaryFolder:
    """A folder that goes when we do, killed or not: a process that waits for our end of a pipe removes it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rdma_lab-"))
        wait = 'cat > /dev/null; rm -rf -- "$0"'
        self._keeper = subprocess.Popen(
            ["sh", "-c", wait, str(self.path)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def remove(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


def start_guest(
    kernel: Kernel,
    accelerator: str,
    share: Path,
    memory: str,
    wires: Sequence[socket.socket],
    configuration: dict[str, Any],
) -> Machine:
    """wires: what its interfaces eth0, eth1, ... are joined to, if it has any."""
    (share / "configuration.json").write_text(json.dumps({**configuration, "own_machine": True, "share": ""}))
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    # Without `site`: an environment full of packages takes seconds to look at where all is emulated.
    agent = [sys.executable, "-E", "-S", str(SCRIPTS / "rdma_lab_agent.py"), PORT_NAME, f"{SHARE}/configuration.json"]
    (share / "start").write_text(
        f"export PATH={shlex.quote(path)} HOME=/root PYTHONDONTWRITEBYTECODE=1\n"
        f"{shlex.join(agent)}\n"
        # The host's own way to power off may not be there: it may be a container.
        "echo o > /proc/sysrq-trigger\nsleep 60\n"
    )
    ours, its = socket.socketpair()
    virtio = "local,security_model=none"
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--", "qemu-system-x86_64"),
        *("-accel", accelerator, "-cpu", "host" if accelerator == "kvm" else "max", "-smp", "2", "-m", memory),
        *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(kernel.image), "-initrd", str(kernel.initrd), "-append", APPEND),
        *("-virtfs", f"{virtio},path=/,mount_tag=lab_root,readonly=on,multidevs=remap"),
        *("-virtfs", f"{virtio},path={share},mount_tag=lab_share"),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={its.fileno()}"),
        *("-device", f"virtserialport,chardev=agent,name={PORT_NAME}"),
    ]
    for number, wire in enumerate(wires):
        mac = f"52:54:00:77:{number:02x}:{configuration['alone'] + 1:02x}"
        command += ["-netdev", f"socket,id=net{number},fd={wire.fileno()}"]
        command += ["-device", f"virtio-net-pci,netdev=net{number},mac={mac},romfile="]
    machine = Machine(command, ours, [its.fileno(), *(wire.fileno() for wire in wires)])
    its.close()
    return machine


def start_here(share: Path, configuration: dict[str, Any]) -> Machine:
    """The agent on this machine's own kernel."""
    file = share / "configuration.json"
    file.write_text(json.dumps({**configuration, "own_machine": False, "share": str(share)}))
    ours, its = socket.socketpair()
    apart = ["unshare", "--mount", "--propagation", "private", "--"]
    # Without `site`: an environment full of packages takes seconds to look at where all is emulated.
    agent = [sys.executable, "-E", "-S", str(SCRIPTS / "rdma_lab_agent.py"), str(its.fileno()), str(file)]
    machine = Machine([*apart, *agent], ours, [its.fileno()])
    its.close()
    return machine


def why_not_here(devices: Sequence[str] = ()) -> str:
    """'' if this machine's own kernel can make a lab, else the reason. Loads rdma_rxe unless devices are named."""
    if os.geteuid() != 0:
        return "this is not root"
    try:
        first = os.readlink("/proc/self/ns/net") == os.readlink("/proc/1/ns/net")
    except OSError:
        return "this is a container"
    if not first:
        return "this is not the first network namespace"
    if devices or Path("/sys/module/rdma_rxe").is_dir():
        return ""
    if shutil.which("modprobe") is None:
        return "there is no modprobe, and rdma_rxe is not loaded"
    done = subprocess.run(["modprobe", "rdma_rxe"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return "" if done.returncode == 0 else done.stdout.strip() or "modprobe rdma_rxe failed"


def accelerators(wanted: str) -> list[str]:
    """What to try, in order. Where kvm was there but no guest came up under it, that is remembered until a reboot."""
    emulated = "tcg,thread=multi"
    if wanted == "tcg":
        return [emulated]
    if wanted == "kvm":
        return ["kvm"]
    usable = os.access("/dev/kvm", os.R_OK | os.W_OK) and not _kvm_failed().exists()
    return ["kvm", emulated] if usable else [emulated]


def remember_kvm_failed() -> None:
    _kvm_failed().parent.mkdir(parents=True, exist_ok=True)
    _kvm_failed().write_text(time.ctime())


def _kvm_failed() -> Path:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return cache_folder() / f"kvm-failed-{boot}"
