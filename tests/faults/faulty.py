"""What the fault tests share: a group, calls that must fail, and Python scripts that end in unusual ways."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringcomm  # registers the backend where the package is not installed

HOST = socket.gethostname()
NOTICED = 3.0
"""Seconds from a death to every survivor's exception: the promise. It takes milliseconds on a quiet machine."""
LATE = 1.0
"""Seconds a time-out may come late."""
LEFT = 2.0 + 0.5
"""Seconds destroy may take in a broken group: 2 s is the promise, and half a second for the rest."""
ROOT = Path(ringcomm.__file__).resolve().parents[1]


def allowed(seconds: float) -> float:
    """Such a limit on a machine as busy as this one: so many times longer as tasks share a core (the load of the last
    minute), and no longer where each has its own."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass
class Failure:
    """An exception as a rank saw it. `at` and `began` are CLOCK_MONOTONIC, one clock for all processes."""

    text: str
    kind: str
    began: float
    at: float

    @property
    def seconds(self) -> float:
        return self.at - self.began


def start(timeout: float = 30.0, at_init: bool = False, **kwargs: Any) -> Any:
    """Makes the default group; returns its store. timeout: seconds, of its calls; with at_init of its making too, which
    else may take 30 s: on a busy machine it takes seconds."""
    making = timeout if at_init else max(timeout, 30.0)
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=making), **kwargs)
    if making != timeout:
        backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        backend._set_default_timeout(timedelta(seconds=timeout))
    return dist.distributed_c10d._get_default_store()


def meet(store: Any, name: str) -> None:
    """Returns when every rank has come here, without the group under test. A failure ends whatever is pending in its
    group, so a rank that is slow to leave the last good call would get the error of the next one there."""
    store.set(f"{name}/{dist.get_rank()}", "")
    store.wait([f"{name}/{rank}" for rank in range(dist.get_world_size())])


def failure(call: Callable[[], object]) -> Failure:
    """Runs what must raise."""
    began = time.monotonic()
    try:
        call()
    except BaseException as error:  # KeyboardInterrupt too: the caller looks at the kind
        return Failure(str(error), type(error).__name__, began, time.monotonic())
    raise AssertionError("the call should have raised, and returned")


def all_reduce(count: int = 4, **kwargs: Any) -> Any:
    return dist.all_reduce(torch.ones(count), **kwargs)


def destroy_seconds() -> float:
    began = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - began


def signal_self(store: Any, number: int, after: float) -> None:
    """Sends this process a signal in `after` seconds; says in the store when, and which process it is."""
    store.set("pid", str(os.getpid()))

    def fire() -> None:
        time.sleep(after)
        store.set("signalled", repr(time.monotonic()))
        os.kill(os.getpid(), number)

    threading.Thread(target=fire, daemon=True).start()


def kill_self(store: Any, after: float) -> None:
    signal_self(store, signal.SIGKILL, after)


def wake_later(pid: int, after: float) -> None:
    """From another process, because this one will be stopped."""
    if os.fork() == 0:
        time.sleep(after)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)


def named(store: Any, rank: int) -> str:
    """How errors name the rank that called signal_self."""
    return f"rank {rank} (host {HOST}, pid {store.get('pid').decode()})"


def signalled(store: Any) -> float:
    return float(store.get("signalled"))


def script(
    text: str, *args: str, python: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """A Python process that runs `text`, with ringcomm imported and `init(rank, world, store_file)` defined."""
    head = """
        import os, signal, sys, threading, time
        import torch, torch.distributed as dist
        import ringcomm

        def init(rank=0, world=1, file=None, timeout=30):
            from datetime import timedelta
            store = dist.FileStore(file, world) if file else dist.HashStore()
            limit = timedelta(seconds=timeout)
            dist.init_process_group("ringcomm", store=store, rank=rank, world_size=world, timeout=limit)
    """
    source = textwrap.dedent(head) + "\n" + textwrap.dedent(text)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *python, "-c", source, *args],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, str, str]:
    """Exit status, stdout and stderr; one that has not ended in allowed(timeout) is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=allowed(timeout))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the process did not end in {timeout} s; stdout: {out}; stderr: {err}") from None
    return process.returncode, out, err


def finish_well(process: subprocess.Popen[str], timeout: float = 60.0) -> str:
    """The standard output of a process that must end with status 0 and no word of a crash."""
    code, out, err = finish(process, timeout)
    assert code == 0, f"exit status {code}; stdout: {out}; stderr: {err}"
    for word in ("Fatal Python error", "terminate called", "exception not rethrown", "Segmentation"):
        assert word not in err, err
    return out
