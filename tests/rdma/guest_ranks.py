"""Runs functions as ranks on the nodes of the RDMA lab, as `run_ranks` does on this machine.

torch takes a minute or two to import where all is emulated, so each node has a server that imports it once and forks
the ranks of every call. Calls and results go through the folder that the lab shares with its nodes.

This file is both sides: on a node it runs as a program.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rank_worker import Call, Outcome, perform

if TYPE_CHECKING:
    from rdma_lab import RdmaLab

PORTS = itertools.count(29600)
IMPORT_SECONDS = 600.0
"""To import torch on both nodes at once: 40 s in a guest on a quiet machine, 300 s on a busy one."""


@dataclass
class Task:
    """One call of a function on `per_node` ranks of each of `nodes` nodes."""

    call: Call
    per_node: int
    nodes: int
    timeout: float


class GuestRanks:
    """The servers of one lab; they end with it."""

    def __init__(self, lab: RdmaLab) -> None:
        self._lab = lab
        self._tasks = itertools.count()
        program = [sys.executable, str(Path(__file__).resolve())]
        # The server's modules are not found through an installed package, nor does torch load backends by itself.
        path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
        env = {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        self._servers = [lab.start(node, program, None, env) for node in range(lab.hosts)]
        self._await([lab.out(node) / "ready" for node in range(lab.hosts)], time.monotonic() + IMPORT_SECONDS)

    def run(
        self,
        fn: Callable[..., Any],
        per_node: int,
        *args: Any,
        timeout: float = 120,
        env: dict[str, str | None] | None = None,
        expect_dead: Collection[int] = (),
    ) -> list[Any]:
        """`fn(rank, world, *args)` on all ranks; results by rank, None for those of `expect_dead`.

        As under torchrun, rank 0 is on the first node and holds the store, so it must be the last to end."""
        number, nodes = next(self._tasks), self._lab.hosts
        world = nodes * per_node
        names: dict[str, str | None] = {
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(per_node),
            "MASTER_PORT": str(next(PORTS)),
            **(env or {}),
        }
        call = Call(pickle.dumps((fn, args, {})), list(sys.path), names)
        task = pickle.dumps(Task(call, per_node, nodes, timeout))
        for node in range(nodes):
            _put(self._lab.out(node) / f"task{number}", task)
        files = [self._lab.out(rank // per_node) / f"result{number}-{rank}" for rank in range(world)]
        self._await(files, time.monotonic() + timeout + 60)
        outcomes: list[Outcome | int] = [pickle.loads(file.read_bytes()) for file in files]
        wrong = [
            f"--- rank {rank}: {outcome if isinstance(outcome, int) else outcome.error}"
            for rank, outcome in enumerate(outcomes)
            if (isinstance(outcome, int) or outcome.error) and rank not in expect_dead
        ]
        assert not wrong, "\n".join([*wrong, *(server.text()[-3000:] for server in self._servers)])
        return [None if isinstance(o, int) or o.value is None else pickle.loads(o.value) for o in outcomes]

    def said(self, node: int) -> str:
        """All that ranks of a node have printed so far."""
        return self._servers[node].text()

    def _await(self, files: list[Path], end: float) -> None:
        while not all(file.exists() for file in files):
            gone = [server for server in self._servers if server.poll() is not None]
            assert not gone, f"a server has ended with status {gone[0].poll()}:\n{gone[0].text()[-6000:]}"
            late = [file.name for file in files if not file.exists()]
            assert time.monotonic() < end, f"{late} did not come; servers:\n" + "\n".join(
                server.text()[-3000:] for server in self._servers
            )
            time.sleep(0.05)


def _put(file: Path, data: bytes) -> None:
    """Whole or not at all: the other side looks for the name."""
    half = file.with_name(f"half-{file.name}")
    half.write_bytes(data)
    half.rename(file)


def serve(folder: Path, node: int) -> None:
    import torch
    import torch.distributed

    import ringcomm  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    _put(folder / "ready", b"")
    for number in itertools.count():
        file = folder / f"task{number}"
        while not file.exists():
            time.sleep(0.05)
        task: Task = pickle.loads(file.read_bytes())
        ranks = range(node * task.per_node, (node + 1) * task.per_node)
        running = {_fork(task, rank, folder / f"result{number}-{rank}"): rank for rank in ranks}
        end = time.monotonic() + task.timeout
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                result = folder / f"result{number}-{running.pop(pid)}"
                if not result.exists():  # it died: its status is its result
                    _put(result, pickle.dumps(os.waitstatus_to_exitcode(status)))
            elif time.monotonic() > end:
                for late in running:
                    os.kill(late, signal.SIGKILL)
            time.sleep(0.02)


def _fork(task: Task, rank: int, result: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["RANK"], os.environ["LOCAL_RANK"] = str(rank), str(rank % task.per_node)
        outcome = perform(task.call, rank, task.per_node * task.nodes)
        _put(result, pickle.dumps(outcome))
        if outcome.error:
            print(outcome.error, flush=True)
    finally:
        sys.stdout.flush()
        # What the group leaves must go as in any process that ends, but the server's own handlers are not ours to run.
        os._exit(0)


if __name__ == "__main__":
    # Pickled by the other side as guest_ranks.Task.
    sys.modules["guest_ranks"] = sys.modules["__main__"]
    serve(Path(os.environ["OUT"]), int(os.environ["NODE_RANK"]))
