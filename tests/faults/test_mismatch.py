"""Ranks that do not make the same call: every rank gets an exception with both sides; none hangs past the time-out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import LATE, LEFT, Failure, all_reduce, allowed, destroy_seconds, failure, meet, start
from ranks import run_ranks

TIMEOUT = 4.0


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def broadcast(count: int, src: int) -> None:
    dist.broadcast(numbers(count), src)


def all_gather(count: int) -> None:
    dist.all_gather_into_tensor(numbers(count * dist.get_world_size()), numbers(count))


def reduce_scatter(count: int) -> None:
    dist.reduce_scatter_tensor(numbers(count), numbers(count * dist.get_world_size()))


def nothing() -> None:
    pass


Calls = list[Callable[[], Any]]
# name: what most call, what the odd one calls, words of either side that the text must have.
CASES: dict[str, tuple[Calls, Calls, tuple[str, str]]] = {
    "shape": ([lambda: all_reduce(4)], [lambda: all_reduce(5)], ("16 bytes", "20 bytes")),
    "large shape": ([lambda: all_reduce(1 << 18)], [lambda: all_reduce(1 << 19)], ("1048576 bytes", "2097152 bytes")),
    "dtype": (
        [lambda: dist.all_reduce(numbers(4))],
        [lambda: dist.all_reduce(numbers(4, torch.int32))],
        ("float32", "int32"),
    ),
    "kinds of 8-bit floats": (
        [lambda: dist.broadcast(numbers(4, torch.float8_e5m2), 0)],
        [lambda: dist.broadcast(numbers(4, torch.float8_e4m3fn), 0)],
        ("float8_e5m2", "float8_e4m3fn"),
    ),
    "reduce op": (
        [lambda: dist.all_reduce(numbers(4))],
        [lambda: dist.all_reduce(numbers(4), dist.ReduceOp.MAX)],
        ("sum", "max"),
    ),
    "root": ([lambda: broadcast(4, 0)], [lambda: broadcast(4, 1)], ("root 0", "root 1")),
    "operation": ([lambda: all_reduce(4)], [lambda: broadcast(4, 0)], ("all_reduce #2", "broadcast #2")),
    "barrier": ([lambda: all_reduce(4)], [dist.barrier], ("all_reduce #2", "barrier #2")),
    "gather": ([lambda: all_gather(4)], [lambda: all_gather(6)], ("all_gather", "all_gather")),
    "scatter": ([lambda: reduce_scatter(4)], [lambda: all_gather(4)], ("reduce_scatter", "all_gather")),
    "order": (
        [lambda: all_reduce(4), lambda: broadcast(8, 0)],
        [lambda: broadcast(8, 0), lambda: all_reduce(4)],
        ("all_reduce #2", "broadcast #2"),
    ),
    "missing call": (
        [lambda: all_reduce(4), lambda: all_reduce(8), lambda: all_reduce(12)],
        [lambda: all_reduce(4), lambda: all_reduce(12)],
        ("32 bytes", "48 bytes"),
    ),
    "extra call": (
        [lambda: all_reduce(4), lambda: all_reduce(8)],
        [lambda: all_reduce(4), dist.barrier, lambda: all_reduce(8)],
        ("32 bytes", "barrier #3"),
    ),
    "no elements": ([lambda: all_reduce(4)], [lambda: all_reduce(0)], ("16 bytes", "0 bytes")),
    "no elements at all_gather": ([lambda: all_gather(4)], [lambda: all_gather(0)], ("float32", " 0 bytes")),
}


def disagree(rank: int, world: int, case: str, odd: int) -> tuple[Failure, float]:
    store = start(timeout=TIMEOUT)
    all_reduce()
    meet(store, "through")
    usual, other, _ = CASES[case]

    def calls() -> None:
        for call in other if rank == odd else usual:
            call()
        # A rank whose own part had ended finds out at its next call.
        dist.barrier()

    return failure(calls), destroy_seconds()


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("case", CASES)
def test_every_rank_sees_both_sides(case: str, world: int) -> None:
    odd = 1
    results = run_ranks(disagree, world, case, odd)
    text = results[0][0].text
    for found, destroy in results:
        assert found.kind == "DistBackendError" and found.text == text, "one first cause for all"
        assert found.seconds < TIMEOUT + allowed(LATE)
        assert destroy < allowed(LEFT)
    assert "ranks disagree on call #" in text
    for word in CASES[case][2]:
        assert word in text, text
    if world > 2:
        assert text.split("': ", 1)[1].startswith(f"rank {odd} (host "), "the odd one out comes first: " + text


def send_other_size(rank: int, world: int, count: int) -> Any:
    start(timeout=TIMEOUT)
    if rank == 0:
        dist.send(numbers(count), 1)  # a small one is gone before its receive is posted
        found = failure(dist.barrier)
    else:
        found = failure(lambda: dist.recv(numbers(3), 0))
    return found, destroy_seconds()


@pytest.mark.parametrize("count", [2, 4, 100])
def test_a_message_of_another_size_is_refused(count: int) -> None:
    for found, destroy in run_ranks(send_other_size, 2, count):
        assert "sizes differ" in found.text and "rank 0 (host" in found.text and "rank 1 (host" in found.text
        assert f"of {4 * count} bytes" in found.text and "into 12 bytes" in found.text
        assert found.seconds < TIMEOUT + allowed(LATE) and destroy < allowed(LEFT)


def send_other_large_size(rank: int, world: int) -> Any:
    start(timeout=TIMEOUT)
    if rank == 0:
        return failure(lambda: dist.send(numbers(1 << 20), 1))
    return failure(lambda: dist.recv(numbers(1 << 19), 0))


def test_a_large_message_of_another_size_is_refused() -> None:
    for found in run_ranks(send_other_large_size, 2):
        assert "sizes differ" in found.text and "4194304 bytes" in found.text and "2097152 bytes" in found.text


def split_otherwise(rank: int, world: int, sends: int, expects: int) -> Any:
    """Rank 0 sends `sends` rows to rank 1, which expects `expects`; all else is right."""
    start(timeout=TIMEOUT)
    to, of = [2] * world, [2] * world
    if rank == 0:
        to[1] = sends
    if rank == 1:
        of[0] = expects

    def calls() -> None:
        dist.all_to_all_single(torch.zeros(sum(of), 3), torch.ones(sum(to), 3), of, to)
        dist.barrier()  # a rank whose part was right is told by its next call

    return failure(calls), destroy_seconds()


@pytest.mark.parametrize(("sends", "expects"), [(2, 3), (3, 2), (1000, 2000), (0, 2), (2, 0)])
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.long)])
def test_split_sizes_that_disagree_in_a_pair(sends: int, expects: int, world: int) -> None:
    results = run_ranks(split_otherwise, world, sends, expects)
    text = results[0][0].text
    for found, destroy in results:
        assert found.text == text and found.seconds < TIMEOUT + allowed(LATE) and destroy < allowed(LEFT)
    assert "all_to_all #1" in text and "rank 0 (host" in text
    assert f"sends {12 * sends} bytes" in text
    assert f"expects {12 * expects} bytes" in text if expects else "expects none" in text


def collective_against_message(rank: int, world: int) -> Any:
    start(timeout=TIMEOUT)
    if rank == 0:
        return failure(all_reduce)
    return failure(lambda: dist.recv(numbers(4), 0))


def test_a_collective_on_one_rank_and_a_receive_on_the_other_end_at_the_timeout() -> None:
    for found in run_ranks(collective_against_message, 2):
        assert " Timed out " in found.text and found.seconds < TIMEOUT + allowed(LATE)
        assert "has not made this call" in found.text or "has not sent it" in found.text
