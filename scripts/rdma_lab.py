"""Nodes with RDMA devices on a machine without RDMA hardware. `scripts/rdma_lab` is the command, docs/rdma_lab.md the
page.

    with RdmaLab(2) as lab:
        job = lab.start(0, ["ibv_devinfo"])
        assert job.wait(60) == 0, job.text()
        lab.fault("link", 1, "down")

Soft-RoCE needs a kernel that has rdma_rxe: this machine's own if it can load it, else that of a QEMU guest that sees
this machine's files. There, each node is a set of namespaces as in scripts/net_lab.py and an rxe device; with
`kernels=2` each of two nodes is a guest of its own.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import rdma_lab_fabric
import rdma_lab_kernel
import rdma_lab_machine
import rdma_lab_setup
from net_lab import Lab
from rdma_lab_channel import Message
from rdma_lab_job import LOST, Job
from rdma_lab_machine import Machine, TemporaryFolder

HERE = "this machine's kernel"
BOOT_SECONDS = {"kvm": 30.0, "tcg,thread=multi": 240.0, HERE: 120.0}
"""To the agent's first word. Emulated: 15 s on a quiet machine, over 90 s on a busy one."""
TRIES = 2


class RdmaLabError(RuntimeError):
    """The machine cannot make the lab; the text says why."""


class RdmaLab:
    """`hosts` nodes while the `with` block lasts.

    kernels: 2 gives each of two nodes a kernel of its own. where: `guest`, `here` (this machine's kernel), `auto`: here
    if that can be. devices: RDMA devices of this machine to use instead of making some; then it is `here`.
    memory: of each guest. accelerator: `kvm`, `tcg`, `auto`. share: a folder for what nodes leave in their $OUT, node0
    and so on; else it is a temporary one.
    """

    def __init__(
        self,
        hosts: int = 2,
        kernels: int = 1,
        where: str = "auto",
        devices: Sequence[str] = (),
        memory: str = "4G",
        mtu: int = 4200,
        accelerator: str = "auto",
        share: Path | None = None,
    ) -> None:
        if kernels not in (1, 2) or (kernels == 2 and hosts != 2):
            raise ValueError(f"kernels is {kernels} for {hosts} nodes; allowed are 1, and 2 for 2 nodes")
        if not 1 <= hosts <= 64:
            raise ValueError(f"hosts is {hosts}; allowed are 1 to 64")
        if where not in ("auto", "guest", "here"):
            raise ValueError(f"where is {where!r}; allowed are auto, guest, here")
        if accelerator not in ("auto", "kvm", "tcg"):
            raise ValueError(f"accelerator is {accelerator!r}; allowed are auto, kvm, tcg")
        self.hosts, self.kernels, self.devices = hosts, kernels, tuple(devices)
        self._where, self._memory, self._mtu, self._accelerator = where, memory, mtu, accelerator
        self._share = share
        self._temporary: TemporaryFolder | None = None
        self.described = ""
        """On what it runs, in words."""
        self.boot_seconds = 0.0
        self._machines: list[Machine] = []
        self._owner: dict[int, Machine] = {}
        self._devices: dict[int, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[Machine, Job]] = {}
        self._answers: dict[int, Callable[[str, bool], None]] = {}

    def __enter__(self) -> RdmaLab:
        began = time.monotonic()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        self.boot_seconds = time.monotonic() - began
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    name = staticmethod(Lab.name)
    address = staticmethod(Lab.address)

    @property
    def share(self) -> Path:
        assert self._share is not None
        return self._share

    def device(self, node: int) -> str:
        return self._devices[node][0]

    def gid(self, node: int) -> int:
        """The index of the GID to use."""
        return self._devices[node][1]

    def out(self, node: int) -> Path:
        """The folder that commands on the node see as $OUT."""
        return self.share / f"kernel{node}" / f"node{node}" if self.kernels == 2 else self.share / f"node{node}"

    def start(
        self,
        node: int | None,
        command: Sequence[str],
        timeout: float | None = None,
        env: Mapping[str, str | None] | None = None,
        **_: Any,
    ) -> Job:
        """Runs a command on a node (None: beside the nodes), in the present folder and environment.

        timeout: seconds, then it is killed and its status is 124. env: what to change in the environment.
        """
        machine = self._machines[0] if node is None else self._owner[node]
        number = next(self._numbers)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        for key, value in (env or {}).items():
            environment.pop(key, None)
            if value is not None:
                environment[key] = value
        job = Job(lambda: (machine.channel.send({"do": "stop", "job": number}), None)[1])
        with self._lock:
            self._jobs[number] = machine, job
        message: Message = {"do": "start", "job": number, "node": node, "command": list(command)}
        message |= {"environment": environment, "folder": str(Path.cwd()), "timeout": timeout}
        message["more"] = {key: value for key, value in (env or {}).items() if value is not None}
        if not machine.channel.send(message):
            job._ended(LOST)
        return job

    def fault(self, *words: object, seconds: float = 60.0) -> str:
        """As `$RDMA_LAB_CTL` inside (rdma_lab_ctl.py): `fault("link", 1, "down")`. Returns what it says when done."""
        done = threading.Event()
        found: list[tuple[str, bool]] = []

        def answered(text: str, good: bool) -> None:
            found.append((text, good))
            done.set()

        self._ask([str(word) for word in words], answered)
        if not done.wait(seconds):
            raise RdmaLabError(f"{' '.join(map(str, words))}: no answer in {seconds:.0f} s")
        text, good = found[0]
        if not good:
            raise RdmaLabError(text)
        return text

    def close(self) -> None:
        for machine in self._machines:
            machine.end()
        if self._machines and self.described.startswith(HERE):
            rdma_lab_fabric.remove(self.hosts)  # where the agent had to be killed
        self._machines.clear()
        self._owner.clear()
        if self._temporary is not None:
            self._temporary.remove()
            self._share = self._temporary = None

    def _make(self) -> None:
        if self._share is None:
            self._temporary = TemporaryFolder()
            self._share = self._temporary.path
        here, why = self._runs_here()
        lacking = rdma_lab_setup.missing(guest=not here)
        if lacking:
            raise RdmaLabError(lacking)
        if here:
            self.described = f"{HERE}, {', '.join(self.devices) or 'rdma_rxe'}"
            self._ready([rdma_lab_machine.start_here(self.share, self._configuration(None))], BOOT_SECONDS[HERE])
            return
        try:
            kernel = rdma_lab_kernel.kernel()
        except rdma_lab_kernel.KernelError as error:
            raise RdmaLabError(f"{why}; {error}") from None
        problems = []
        for accelerator in rdma_lab_machine.accelerators(self._accelerator):
            for _ in range(TRIES if accelerator != "kvm" else 1):
                try:
                    self._ready(self._guests(kernel, accelerator), BOOT_SECONDS[accelerator])
                    self.described = f"{self.kernels} guest(s) of {kernel.version} under {accelerator}; {why}"
                    return
                except RdmaLabError as error:
                    problems.append(f"{accelerator}: {error}")
                    for machine in self._machines:
                        machine.end(0.1)
                    self._machines.clear()
            if accelerator == "kvm":
                rdma_lab_machine.remember_kvm_failed()
        raise RdmaLabError("no guest came up; " + "; ".join(problems))

    def _runs_here(self) -> tuple[bool, str]:
        """(whether this machine's own kernel will do, why not)"""
        if self.devices or self._where == "here":
            if self.kernels == 2:
                raise RdmaLabError("two kernels are two guests, not this machine")
            if why := rdma_lab_machine.why_not_here(self.devices):
                raise RdmaLabError(f"no lab on this machine's own kernel: {why}")
            return True, ""
        if self._where == "guest" or self.kernels == 2:
            return False, "a guest was asked for"
        why = rdma_lab_machine.why_not_here()
        if not why:
            return True, ""
        real = rdma_lab_fabric.found("ACTIVE")
        if real and os.geteuid() == 0:
            self.devices = tuple(real)
            return True, ""
        return False, f"rdma_rxe cannot be used here: {why}"

    def _configuration(self, alone: int | None) -> dict[str, Any]:
        return {"count": self.hosts, "mtu": self._mtu, "alone": alone, "devices": self.devices}

    def _guests(self, kernel: rdma_lab_kernel.Kernel, accelerator: str) -> list[Machine]:
        if self.kernels == 1:
            made: list[tuple[dict[str, Any], Path, list[socket.socket]]]
            made = [(self._configuration(None), self.share, [])]
        else:
            # One wire for TCP, one for RDMA; each guest has an end of both.
            ends = list(zip(*(socket.socketpair() for _ in range(2)), strict=True))
            made = [(self._configuration(node), self.share / f"kernel{node}", list(ends[node])) for node in range(2)]
        machines = []
        for configuration, share, wires in made:
            share.mkdir(exist_ok=True)
            machines.append(
                rdma_lab_machine.start_guest(kernel, accelerator, share, self._memory, wires, configuration)
            )
            for wire in wires:
                wire.close()
        return machines

    def _ready(self, machines: list[Machine], seconds: float) -> None:
        self._machines = machines
        said: dict[int, Message] = {}
        changed = threading.Condition()

        def first(number: int, message: Message) -> None:
            with changed:
                said.setdefault(number, message)
                changed.notify_all()

        for number, machine in enumerate(machines):
            threading.Thread(target=self._follow, args=(number, machine, first), daemon=True).start()
        with changed:
            changed.wait_for(lambda: len(said) == len(machines) or any("why" in m for m in said.values()), seconds)
        for number, machine in enumerate(machines):
            message = said.get(number, {"why": f"no word in {seconds:.0f} s"})
            if "why" in message:
                raise RdmaLabError(f"{message['why']}; its console: {' | '.join(machine.last) or 'nothing'}")
            for node in message["nodes"]:
                self._owner[node["node"]] = machine
                self._devices[node["node"]] = node["device"], node["gid"]

    def _follow(self, number: int, machine: Machine, first: Callable[[int, Message], None]) -> None:
        """A thread per kernel: hands over what its agent says."""
        for message in machine.channel.messages():
            match message["say"]:
                case "ready" | "failed":
                    first(number, message)
                case "text":
                    self._jobs[message["job"]][1]._said(message["text"])
                case "end":
                    with self._lock:
                        _, job = self._jobs.pop(message["job"])
                    job._ended(message["status"])
                case "answer":
                    with self._lock:
                        answered = self._answers.pop(message["ask"])
                    answered(message["text"], message["good"])
                case "ask":
                    self._pass_on(machine, message)
        first(number, {"why": "it ended"})
        with self._lock:
            lost = [key for key, (owner, _) in self._jobs.items() if owner is machine]
            jobs = [self._jobs.pop(key)[1] for key in lost]
        for job in jobs:
            job._ended(LOST)

    def _pass_on(self, machine: Machine, message: Message) -> None:
        """What a program inside asked for may be another kernel's business."""

        def answered(text: str, good: bool) -> None:
            machine.channel.send({"do": "answer", "ask": message["ask"], "text": text, "good": good})

        self._ask(message["words"], answered)

    def _ask(self, words: list[str], answered: Callable[[str, bool], None]) -> None:
        try:
            owner = self._owner[int(words[1])]
        except (ValueError, KeyError, IndexError):
            answered(
                f"which node? 'link 1 down', with a node from 0 to {self.hosts - 1}; was {' '.join(words)!r}", False
            )
            return
        number = next(self._numbers)
        with self._lock:
            self._answers[number] = answered
        owner.channel.send({"do": "fault", "ask": number, "words": words})
