"""Runs a function as n ranks in n real processes: `run_ranks` for one call, `RankPool` for thousands.

A rank function is a top-level function `f(rank, world, *args, **kwargs)` of an importable module. Its environment is
torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), so `dist.init_process_group(name)` needs nothing
more. The parent hosts the TCPStore: its port is chosen by the kernel and it survives the death of any rank.
Results and exceptions come back pickled. tests/README.md shows how to use it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import rank_worker
from rank_worker import Call, Outcome

# Read once, when torch, OpenMP or the C library is loaded: a process that has them cannot be given another value.
READ_AT_IMPORT = ("TORCH_", "OMP_", "MKL_", "LD_", "PYTHON", "MALLOC_")
GRACE = 5.0  # seconds the other ranks get to report after the first failure; guessed, enough to format a traceback


class RankError(AssertionError):
    """Some rank raised, died or hung. `errors[rank]` is its exception; None if it died, hung or cannot be pickled."""

    def __init__(self, text: str, errors: dict[int, BaseException | None]) -> None:
        super().__init__(text)
        self.errors = errors


class Dead:
    """The result of a rank of `expect_dead`: `exitcode` is its exit status, -N if signal N ended it."""

    def __init__(self, exitcode: int | None) -> None:
        self.exitcode = exitcode

    def __repr__(self) -> str:
        return f"Dead({self.exitcode})"


def run_ranks(
    fn: Callable[..., Any],
    world: int,
    *args: Any,
    timeout: float = 60,
    env: dict[str, str | None] | None = None,
    expect_dead: Collection[int] = (),
    **kwargs: Any,
) -> list[Any]:
    """Runs `fn(rank, world, *args, **kwargs)` on `world` fresh processes and returns the results by rank.

    Ranks of `expect_dead` must die without returning; their result is a `Dead`. `env` adds variables, or removes those
    that are None. Raises RankError with the tracebacks of all failed ranks, with the stacks of those that hang after
    `timeout` seconds.
    """
    with RankPool(world, env=env) as pool:
        return pool.run(fn, *args, timeout=timeout, expect_dead=expect_dead, **kwargs)


class RankPool:
    """`world` processes that stay alive between calls, so that a call costs about a millisecond, not a process start.

    With `backend`, each process makes the default group once and every call finds it; otherwise each call makes its own
    (each gets a new store). After a failed call the processes are replaced at the next one. Use it as a context
    manager or a module-scoped fixture.
    """

    def __init__(
        self,
        world: int,
        backend: str | None = None,
        env: dict[str, str | None] | None = None,
        start_timeout: float = 60,
        **init_kwargs: Any,
    ) -> None:
        self.world = world
        self.backend = backend
        self.init_kwargs = init_kwargs
        self.env = dict(env or {})
        self.start_timeout = start_timeout
        self._ranks: list[_Rank] = []
        self._stores: list[Any] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process ids by rank; starts the processes if there are none."""
        self._start()
        return [rank.pid for rank in self._ranks]

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float = 60,
        env: dict[str, str | None] | None = None,
        expect_dead: Collection[int] = (),
        **kwargs: Any,
    ) -> list[Any]:
        """As `run_ranks`. `env` holds for this call only, and not for what is read when torch is imported."""
        self._start()
        payload = pickle.dumps((fn, args, kwargs))
        master = {} if self.backend else self._new_store()
        for rank in self._ranks:
            rank.conn.send(Call(payload, list(sys.path), {**master, **(env or {})}))
        return self._collect(timeout, frozenset(expect_dead))

    def close(self) -> None:
        """Lets the processes end (destroying the group that the pool made) and kills those that do not in 5 s."""
        for rank in self._ranks:
            rank.dismiss()
        deadline = time.monotonic() + GRACE
        for rank in self._ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _start(self) -> None:
        if self._ranks:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        setup = None
        if self.backend:
            payload = pickle.dumps((rank_worker.init_group, (self.backend, self.init_kwargs), {}))
            setup = Call(payload, list(sys.path), dict(self._new_store()))
        context = _context(self.env)
        with rank_worker.changed_environment(self.env):
            for rank in range(self.world):
                stacks = Path(self._folder.name, f"{rank}.stacks")
                self._ranks.append(_Rank(context, rank, self.world, stacks, setup))
        if setup is not None:
            self._collect(self.start_timeout, frozenset())

    def _new_store(self) -> dict[str, str | None]:
        from torch.distributed import TCPStore

        self._stores[:] = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
        # What torchrun says to its workers: the store is already there, nobody hosts it.
        return {"MASTER_PORT": str(self._stores[0].port), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def _collect(self, timeout: float, expect_dead: frozenset[int]) -> list[Any]:
        deadline = time.monotonic() + timeout
        outcomes: dict[int, Outcome | Dead] = {}
        while len(outcomes) < self.world:
            waiting = [rank for rank in self._ranks if rank.rank not in outcomes]
            # The sentinel too: a process forked by a dead rank may hold its end of the pipe open.
            handles = [handle for rank in waiting for handle in (rank.conn, rank.process.sentinel)]
            ready = wait(handles, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in waiting:
                if rank.conn not in ready and rank.process.sentinel not in ready:
                    continue
                outcome = outcomes[rank.rank] = rank.receive()
                if _failed(outcome, rank.rank in expect_dead):
                    deadline = min(deadline, time.monotonic() + GRACE)
        errors = self._errors(outcomes, expect_dead, timeout)
        if errors or expect_dead:
            self._kill()
        if errors:
            text = "\n".join(f"--- rank {rank} of {self.world}: {text}" for rank, (text, _) in sorted(errors.items()))
            raise RankError(
                f"{len(errors)} of {self.world} ranks failed\n{text}", {r: e for r, (_, e) in errors.items()}
            )
        return [_result(outcomes[rank]) for rank in range(self.world)]

    def _errors(
        self, outcomes: dict[int, Outcome | Dead], expect_dead: frozenset[int], timeout: float
    ) -> dict[int, tuple[str, BaseException | None]]:
        errors: dict[int, tuple[str, BaseException | None]] = {}
        for rank in self._ranks:
            outcome = outcomes.get(rank.rank)
            if outcome is None:
                errors[rank.rank] = (f"no result (limit {timeout:g} s); its stacks:\n{rank.stacks()}", None)
            elif isinstance(outcome, Dead):
                if rank.rank not in expect_dead:
                    errors[rank.rank] = (f"died with exit status {outcome.exitcode}", None)
            elif outcome.error is not None:
                errors[rank.rank] = (outcome.error, outcome.exception)
            elif rank.rank in expect_dead:
                errors[rank.rank] = ("was expected to die but returned", None)
        return errors

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()
        self._ranks.clear()
        self._stores.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class _Rank:
    """One child process and the pipe to it."""

    def __init__(self, context: Any, rank: int, world: int, stacks: Path, setup: Call | None) -> None:
        self.rank = rank
        self.stack_path = stacks
        self.conn: Connection
        self.conn, child = context.Pipe()
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        base = {**os.environ, "MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in names.items()}}
        base.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo otherwise resolves the host name, which may fail
        args = (rank, world, child, base, str(stacks), setup)
        self.process = context.Process(target=rank_worker.worker_main, args=args, name=f"rank{rank}", daemon=True)
        self.process.start()
        # Only the child holds the other end now, so its death reads as end of file here.
        child.close()
        self.pid: int = self.process.pid

    def receive(self) -> Outcome | Dead:
        try:
            if self.conn.poll():
                return self.conn.recv()
        except (EOFError, ConnectionResetError):
            pass
        self.process.join(GRACE)
        return Dead(self.process.exitcode)

    def stacks(self) -> str:
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.3)
        return self.stack_path.read_text() if self.stack_path.exists() else "(it had not started)"

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):  # already dead
            self.conn.send(None)

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.conn.close()


def _context(env: dict[str, str | None]) -> Any:
    """A server that holds torch and forks each rank in milliseconds; plain spawn where import time matters."""
    if any(key.startswith(READ_AT_IMPORT) for key in env):
        return multiprocessing.get_context("spawn")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "pytest"])
    return context


def _failed(outcome: Outcome | Dead, may_die: bool) -> bool:
    return not may_die if isinstance(outcome, Dead) else outcome.error is not None


def _result(outcome: Outcome | Dead) -> Any:
    if isinstance(outcome, Dead):
        return outcome
    assert outcome.value is not None
    return pickle.loads(outcome.value)
