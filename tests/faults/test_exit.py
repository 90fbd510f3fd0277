"""Processes that end with groups alive, in the middle of things: they end, in time, and without a crash."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest

from faulty import NOTICED, allowed, finish, finish_well, script

END = 2.0 + 6.0
"""Seconds from a script's last line to its end: 2 s for what is pending, and what torch needs on a busy machine
(1 to 2 s, whatever the backend)."""

ENDS = {
    "idle": "",
    "a second group": "other = dist.new_group([0])",
    "pending collective": "dist.all_reduce(torch.ones(4), async_op=True)",
    "pending large collective": "work = dist.all_reduce(torch.ones(1 << 22), async_op=True)",
    "pending future": "f = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda f: f.value())",
    "pending receive": "dist.irecv(torch.ones(4), 1)",
    "pending large send": "dist.isend(torch.ones(1 << 20), 1)",
    "thread in wait": """
        threading.Thread(target=lambda: dist.all_reduce(torch.ones(4)), daemon=True).start()
        time.sleep(0.3)
    """,
    "thread in wait on future": """
        f = dist.all_reduce(torch.ones(4), async_op=True).get_future()
        threading.Thread(target=f.wait, daemon=True).start()
        time.sleep(0.3)
    """,
    "callback sleeps": """
        def slow(f):
            print("in callback", flush=True)
            time.sleep(30)
        later(slow)
    """,
    "callback busy": """
        def busy(f):
            while True:
                sum(range(1000))
        later(busy)
    """,
    "callback waits": """
        def waits(f):
            dist.all_reduce(torch.ones(4))
        later(waits)
    """,
    "exception": "raise SystemExit(0)",
    "group dropped": "import gc; del alone; dist.distributed_c10d._world.pg_map.clear(); gc.collect()",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_whatever_is_pending(end: str, tmp_path: Path) -> None:
    text = """
        rank = int(sys.argv[1])
        init(rank, 2, sys.argv[2])
        alone = dist.new_group([rank], use_local_synchronization=True)
        dist.all_reduce(torch.ones(4))

        def later(callback):  # a call that ends when its callback is in place, so on a callback thread
            work = alone.recv([torch.ones(4)], 0, 0)
            work.get_future().then(callback)
            alone.send([torch.ones(4)], 0, 0).wait()
            time.sleep(0.3)

        if rank == 1:
            time.sleep(60)  # makes no call: what rank 0 has issued stays pending
            sys.exit()
        print(time.monotonic(), flush=True)
    """
    text = textwrap.dedent(text) + textwrap.dedent(ENDS[end])
    ranks = [script(text, str(rank), str(tmp_path / "store")) for rank in range(2)]
    out = finish_well(ranks[0], timeout=30)
    began = float(out.split()[0])
    assert time.monotonic() - began < allowed(END)
    ranks[1].kill()
    finish(ranks[1])


def test_a_rank_that_exits_normally_without_destroy_is_named(tmp_path: Path) -> None:
    text = """
        rank = int(sys.argv[1])
        init(rank, 3, sys.argv[2])
        dist.all_reduce(torch.ones(4))
        print("ready", flush=True)
        if rank == 1:
            sys.exit(0)
        time.sleep(0.5)
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError as error:
            print(time.monotonic() - began, error, flush=True)
            dist.destroy_process_group()
    """
    ranks = [script(text, str(rank), str(tmp_path / "store")) for rank in range(3)]
    outs = [finish_well(process, timeout=30) for process in ranks]
    for out in (outs[0], outs[2]):
        seconds, error = out.split("\n")[1].split(" ", 1)
        assert "rank 1 (host " in error and f"pid {ranks[1].pid}) has left" in error
        assert float(seconds) < allowed(NOTICED)


def test_an_unwaited_send_arrives_though_its_sender_ends(tmp_path: Path) -> None:
    text = """
        rank = int(sys.argv[1])
        init(rank, 2, sys.argv[2])
        if rank == 0:
            dist.isend(torch.full((1000,), 7.0), 1)
            sys.exit(0)
        time.sleep(1.5)
        tensor = torch.zeros(1000)
        dist.recv(tensor, 0)
        print(tensor.mean().item())
    """
    ranks = [script(text, str(rank), str(tmp_path / "store")) for rank in range(2)]
    assert [finish_well(process, timeout=30) for process in ranks][1] == "7.0\n"
