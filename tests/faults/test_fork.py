"""fork after init: the child is told, the parent goes on undisturbed; workers that do not use the group just work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from faulty import all_reduce, failure, finish_well, script, start
from ranks import run_ranks


def in_child(body: Callable[[], str]) -> tuple[str, int]:
    """What `body` returned in a forked child, and the child's exit status."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, body().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return text, os.waitpid(child, 0)[1]


def fork_in_the_middle(rank: int, world: int) -> Any:
    start()
    tensor = torch.full((4,), 1.0)
    dist.all_reduce(tensor)
    pending = all_reduce(1 << 20, async_op=True) if rank == 0 else None
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]

    def child() -> str:
        new = failure(lambda: dist.all_reduce(tensor)).text
        message = failure(lambda: dist.recv(tensor, 1 - rank)).text
        old = failure(pending.wait).text if pending is not None else "belongs to the process"
        again = failure(lambda: dist.new_group([rank], use_local_synchronization=True)).text
        backend.abort()  # not the child's to abort
        error = backend.get_error().name
        dist.destroy_process_group()
        return "\n".join([new, message, old, again, error])

    text, status = in_child(child)
    time.sleep(0.2)
    if pending is None:
        all_reduce(1 << 20)
    else:
        pending.wait()
    tensor.fill_(1.0)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return text.split("\n"), status, tensor[0].item()


def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    for (new, message, old, again, error), status, value in run_ranks(fork_in_the_middle, 2):
        assert "forked after the group" in new and "forked after the group" in message
        assert "belongs to the process" in old
        assert "forked child" in again
        assert error == "SUCCESS"
        assert status == 0 and value == 2.0


def test_a_forked_child_may_end_in_any_way() -> None:
    text = """
        init()
        work = dist.irecv(torch.ones(4), 0)
        for how in ("exit", "_exit", "raise", "fall"):
            pid = os.fork()
            if pid == 0:
                if how == "exit":
                    sys.exit(0)
                if how == "_exit":
                    os._exit(0)
                if how == "raise":
                    raise SystemExit(0)
                break
            assert os.waitpid(pid, 0)[1] == 0, how
        else:
            dist.group.WORLD.send([torch.ones(4)], 0, 0).wait()
            work.wait()
            dist.destroy_process_group()
            print("parent done")
    """
    assert finish_well(script(text)) == "parent done\n"


def test_dataloader_with_forked_workers_while_training_goes_on(tmp_path: Any) -> None:
    text = """
        from torch.utils.data import DataLoader, TensorDataset
        rank = int(sys.argv[1])
        init(rank, 2, sys.argv[2])
        data = TensorDataset(torch.arange(64.0))
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        total = torch.zeros(1)
        for epoch in range(2):
            pending = []
            for (batch,) in loader:
                part = batch.sum().reshape(1)
                pending.append((part, dist.all_reduce(part, async_op=True)))
            for part, work in pending:
                work.wait()
                total += part
        print(total.item())
        dist.destroy_process_group()
    """
    ranks = [script(text, str(rank), str(tmp_path / "store")) for rank in range(2)]
    assert [finish_well(process, 90) for process in ranks] == [f"{2.0 * 2 * 2016}\n"] * 2


def test_multiprocessing_spawn_and_subprocesses_from_a_rank() -> None:
    text = """
        import multiprocessing, subprocess
        init()
        work = dist.irecv(torch.ones(4), 0)
        process = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert subprocess.run(["true"]).returncode == 0
        assert subprocess.run(["true"], preexec_fn=lambda: None).returncode == 0
        # Nothing of ours is open in a program that was started by exec.
        listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
        assert "memfd:ringcomm" not in listing and "pidfd" not in listing, listing
        dist.group.WORLD.send([torch.ones(4)], 0, 0).wait()
        work.wait()
        print("done")
    """
    assert finish_well(script(text)).split() == ["spawned", "done"]


def fork_and_die(rank: int, world: int) -> Any:
    """A child that outlives its parent keeps nothing of it alive: the death is seen all the same."""
    start()
    all_reduce()
    if rank == 1:
        if os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        os.kill(os.getpid(), 9)
    found = failure(all_reduce)
    return found.text, found.seconds


def test_the_death_of_a_rank_is_seen_though_its_child_lives() -> None:
    text, seconds = run_ranks(fork_and_die, 2, expect_dead=[1])[0]
    assert "rank 1 (host" in text and "died" in text and seconds < 3.0
