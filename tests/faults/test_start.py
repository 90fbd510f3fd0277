"""Groups that cannot be made: the rank or the setting that is wrong is named, on every rank, in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from faulty import LATE, allowed, failure, start, wake_later
from ranks import run_ranks
from ringcomm import bootstrap

TIMEOUT = 3.0


def one_never_comes(rank: int, world: int, absent: int) -> Any:
    if rank == absent:
        time.sleep(TIMEOUT + 2)
        return None
    return failure(lambda: start(timeout=TIMEOUT, at_init=True))


def test_a_rank_that_never_comes_is_named_at_the_timeout() -> None:
    for found in run_ranks(one_never_comes, 3, 2)[:2]:
        assert "rank 2 did not come" in found.text
        assert TIMEOUT - 0.1 < found.seconds < TIMEOUT + allowed(LATE)


def test_rank_0_that_never_comes_is_named_at_the_timeout() -> None:
    for found in run_ranks(one_never_comes, 3, 0)[1:]:
        assert "rank 0" in found.text or "ranks 0" in found.text
        assert found.seconds < TIMEOUT + allowed(LATE)


def other_settings(rank: int, world: int, folder: str) -> Any:
    config = Path(folder, f"{rank}.yaml")
    config.write_text(f"version: 1\nmemory: {{slots: {8 if rank == 1 else 4}}}\n")
    os.environ["RINGCOMM_CONFIG"] = str(config)
    return failure(lambda: start(timeout=TIMEOUT))


def test_settings_that_differ_are_named_with_their_ranks(tmp_path: Path) -> None:
    found = run_ranks(other_settings, 3, str(tmp_path))
    assert {f.kind for f in found} == {"AgreementError"} and len({f.text for f in found}) == 1
    text = found[0].text
    assert "memory.slots" in text and "ranks 0, 2" in text and "rank 1" in text, text


def interrupted_while_connecting(rank: int, world: int) -> Any:
    """Rank 1 stops when the cards are exchanged and before it connects; Ctrl-C on rank 0, which waits for it."""
    if rank == 1:
        exchanged = bootstrap.check_agreement

        def stop(cards: Any) -> None:
            wake_later(os.getpid(), 4.0)
            os.kill(os.getpid(), signal.SIGSTOP)
            exchanged(cards)

        bootstrap.check_agreement = stop
        return failure(lambda: start(timeout=30))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    return failure(lambda: start(timeout=30))


def test_ctrl_c_while_a_group_is_being_connected() -> None:
    found, other = run_ranks(interrupted_while_connecting, 2)
    assert found.kind == "KeyboardInterrupt" and 1.5 < found.seconds < 2.0 + 1.0
    assert "rank 0 (host" in other.text and other.seconds < 4.0 + 3.0


def comes_late(rank: int, world: int) -> bool:
    """Rank 0 has destroyed the group before rank 1 has fetched what it needs; still it gets its group."""
    import torch.distributed as dist

    for _ in range(20):
        start()
        if rank == 1:
            time.sleep(0.01)
        dist.destroy_process_group()
    return True


def test_a_group_may_be_destroyed_as_soon_as_it_is_made() -> None:
    assert run_ranks(comes_late, 3) == [True] * 3
