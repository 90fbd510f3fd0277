"""The RDMA lab's part inside the kernel that has the devices: makes the nodes and runs what it is sent.

    rdma_lab_agent.py CHANNEL CONFIGURATION     a descriptor's number or the name of a serial port; a JSON file

It runs in a mount namespace of its own, and ends, taking everything with it, when its channel does: when whoever asked
for the lab has ended, however that was.

In:  {do: start, job, node (None: on none), command, environment, folder, timeout}    {do: stop, job}
     {do: fault, ask, words}        {do: answer, ask, text, good}: to what was asked from inside
Out: {say: ready, nodes}  {say: failed, why}  {say: text, job, text}  {say: end, job, status}
     {say: answer, ask, text, good}      {say: ask, ask, words}: from inside, to whichever kernel has that node
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from net_lab import LabError
from rdma_lab_channel import Channel, Message
from rdma_lab_fabric import FabricError
from rdma_lab_kernel import SHARE
from rdma_lab_nodes import CONTROL, COUNTERS, Nodes, end, with_descendants

PORTS = Path("/sys/class/virtio-ports")
LATE = 124
"""The exit status of what ran past its time, as of timeout(1)."""


class Agent:
    """One thread reads the channel; each job has one that reads its output, each question from inside has one."""

    def __init__(self, channel: Channel, nodes: Nodes) -> None:
        self._channel, self._nodes = channel, nodes
        self._lock = threading.Lock()
        self._jobs: dict[int, subprocess.Popen[bytes]] = {}
        self._asks = itertools.count()
        self._waiting: dict[int, socket.socket] = {}

    def serve(self) -> None:
        self._listen()
        self._channel.send({"say": "ready", "nodes": self._nodes.describe()})
        for message in self._channel.messages():
            match message["do"]:
                case "start":
                    self._start(message)
                case "stop":
                    self._stop(message["job"])
                case "fault":
                    threading.Thread(target=self._fault, args=(message,), daemon=True).start()
                case "answer":
                    self._answered(message)
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            self._stop(job)

    def _start(self, message: Message) -> None:
        job, node = message["job"], message["node"]
        command, environment = message["command"], {**message["environment"]}
        if node is not None:
            environment |= self._nodes.environment(node) | message["more"]
            command = self._nodes.command(node, command, message["folder"])
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=message["folder"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._channel.send({"say": "text", "job": job, "text": f"rdma_lab: {error}\n"})
            self._channel.send({"say": "end", "job": job, "status": 127})
            return
        with self._lock:
            self._jobs[job] = process
        threading.Thread(target=self._follow, args=(job, process, message["timeout"]), daemon=True).start()

    def _follow(self, job: int, process: subprocess.Popen[bytes], timeout: float | None) -> None:
        late = threading.Event()
        timer = threading.Timer(timeout, self._too_late, (job, late)) if timeout else None
        if timer:
            timer.daemon = True
            timer.start()
        reader = threading.Thread(target=self._read, args=(job, process), daemon=True)
        reader.start()
        status = process.wait()
        # A daemon that the command started may hold its output open for ever.
        reader.join(2)
        if timer:
            timer.cancel()
        with self._lock:
            del self._jobs[job]
        status = LATE if late.is_set() else 128 - status if status < 0 else status
        self._channel.send({"say": "end", "job": job, "status": status})

    def _read(self, job: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            while data := os.read(process.stdout.fileno(), 1 << 14):
                self._channel.send({"say": "text", "job": job, "text": data.decode(errors="replace")})

    def _too_late(self, job: int, late: threading.Event) -> None:
        late.set()
        self._stop(job)

    def _stop(self, job: int) -> None:
        with self._lock:
            process = self._jobs.get(job)
        if process is not None:
            # nsenter, which is what we started, does not pass a signal on.
            for pid in with_descendants(process.pid):
                end(pid)

    def _fault(self, message: Message) -> None:
        text, good = "", False
        try:
            text, good = self._nodes.fault(message["words"]), True
        except (ValueError, KeyError, FabricError, OSError, LabError) as error:
            text = f"{' '.join(message['words'])}: {error}"
        self._channel.send({"say": "answer", "ask": message["ask"], "text": text, "good": good})

    def _listen(self) -> None:
        """Where programs on the nodes ask for faults. Files are common to the namespaces, so all of them can."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(CONTROL)
        listener.listen()

        def accept() -> None:
            while True:
                guest, _ = listener.accept()
                words = json.loads(guest.makefile().readline() or "[]")
                ask = next(self._asks)
                with self._lock:
                    self._waiting[ask] = guest
                self._channel.send({"say": "ask", "ask": ask, "words": words})

        threading.Thread(target=accept, daemon=True).start()

    def _answered(self, message: Message) -> None:
        with self._lock:
            guest = self._waiting.pop(message["ask"])
        with guest, contextlib.suppress(OSError):
            guest.sendall(json.dumps({"text": message["text"], "good": message["good"]}).encode())


def open_channel(name: str) -> Channel:
    if name.isdigit():
        return Channel(int(name))
    for port in PORTS.iterdir():
        if (port / "name").read_text().strip() == name:
            return Channel(os.open(f"/dev/{port.name}", os.O_RDWR))
    raise SystemExit(f"rdma_lab: the guest has no port {name}")


def prepare(share: str, own_machine: bool) -> None:
    """Folders that inside have the same names whether this is a guest or not; the mount namespace is ours."""
    if not own_machine:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    for folder in (SHARE, COUNTERS):
        Path(folder).mkdir(parents=True, exist_ok=True)
    if not own_machine:
        subprocess.run(["mount", "--bind", share, SHARE], check=True)
    subprocess.run(["mount", "--bind", "/sys", COUNTERS], check=True)


def main() -> None:
    channel = open_channel(sys.argv[1])
    configuration: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())
    try:
        prepare(configuration["share"], configuration["own_machine"])
        names = ("count", "mtu", "alone", "own_machine", "devices")
        nodes = Nodes(**{name: configuration[name] for name in names})
    except (FabricError, LabError, subprocess.SubprocessError, OSError) as error:
        channel.send({"say": "failed", "why": str(error)})
        return
    try:
        Agent(channel, nodes).serve()
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
