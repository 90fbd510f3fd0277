"""The child's side of tests/ranks.py: a loop that receives functions, runs them as one rank and sends back results.

Nothing here is meant for tests; they use `run_ranks` and `RankPool` from `ranks`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass
class Call:
    """One function call for one rank; `payload` is pickled by itself so that a bad import is reported, not fatal."""

    payload: bytes
    path: list[str]
    env: dict[str, str | None]


@dataclass
class Outcome:
    """What became of a Call: `value`, the pickled result, or `error`, the traceback, and its object if picklable."""

    value: bytes | None = None
    error: str | None = None
    exception: BaseException | None = None


@contextmanager
def changed_environment(env: dict[str, str | None]) -> Iterator[None]:
    """Sets (a string) or removes (None) variables for the length of a block."""
    before = {key: os.environ.get(key) for key in env}
    apply_environment(env)
    try:
        yield
    finally:
        apply_environment(before)


def apply_environment(env: dict[str, str | None]) -> None:
    for key, value in env.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def worker_main(rank: int, world: int, conn: Connection, base: dict[str, str], stacks: str, setup: Call | None) -> None:
    """Runs calls until the parent sends None or closes the pipe. `base` replaces the whole environment at start."""
    # Without this a killed pytest would leave ranks waiting in a collective for ever.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.environ.clear()
    os.environ.update(base)
    # The parent asks for the stacks of a rank that hangs; the file outlives a rank that must be killed.
    stack_file = open(stacks, "w")  # noqa: SIM115 - open for the life of the process
    faulthandler.register(signal.SIGUSR1, file=stack_file, all_threads=True)

    import torch

    torch.set_num_threads(1)
    if setup is not None:
        # The group it makes lives on, so its environment does too.
        apply_environment(setup.env)
        conn.send(perform(setup, rank, world))
    while True:
        try:
            call = conn.recv()
        except EOFError:
            break
        if call is None:
            break
        conn.send(perform(call, rank, world))
    close_group()


def perform(call: Call, rank: int, world: int) -> Outcome:
    """Runs one call; every exception, SystemExit included, becomes an Outcome."""
    sys.path[:] = call.path
    try:
        with changed_environment(call.env):
            function, args, kwargs = pickle.loads(call.payload)
            return Outcome(value=pickle.dumps(function(rank, world, *args, **kwargs)))
    except BaseException as error:  # reported in the parent, whatever it is
        return Outcome(error=traceback.format_exc(), exception=picklable(error))


def picklable(error: BaseException) -> BaseException | None:
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # any class may refuse to be pickled in its own way
        return None
    return copy if isinstance(copy, BaseException) else None


def init_group(rank: int, world: int, backend: str, kwargs: dict[str, Any]) -> None:
    """Makes the default group that a pool keeps for all its calls."""
    import torch.distributed as dist

    dist.init_process_group(backend, rank=rank, world_size=world, **kwargs)


def close_group() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
