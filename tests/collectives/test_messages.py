"""send, recv, isend, irecv: tags in any order, any source, oneself, every size and layout, many in flight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import RANKS, Pools, nothing_wrong
from collective_inputs import INTEGERS, MOVED_ONLY, Placed, same_bits, values

# Typed loosely: their None is for ranks outside the group.
isend: Any = dist.isend
irecv: Any = dist.irecv

# 32 B travel in the header, up to 64 KiB ahead of the receive, more after it was asked for.
COUNTS = (0, 1, 8, 9, 1000, 16 * 1024, 16 * 1024 + 1, 200_003)


def around_the_ring(rank: int, world: int, layout: str) -> list[str]:
    """Everyone sends to the right and receives from the left, nonblocking, receives posted last."""
    wrong = []
    right, left = (rank + 1) % world, (rank - 1) % world
    for dtype in (torch.float32, torch.bfloat16, *INTEGERS, torch.bool, *MOVED_ONLY):
        for count in COUNTS if dtype == torch.float32 else COUNTS[:4]:
            sent, got = Placed(values(rank, 1, (count,), dtype), layout), Placed(values(77, 1, (count,), dtype), layout)
            sending = isend(sent.tensor, right)
            receiving = irecv(got.tensor, left)
            receiving.wait()
            sending.wait()
            if (
                not same_bits(got.tensor, values(left, 1, (count,), dtype))
                or not sent.unchanged()
                or not got.surroundings_kept()
            ):
                wrong.append(f"rank {rank}: {dtype} x {count}, {layout}")
    return wrong


@pytest.mark.parametrize("layout", ["contiguous", "offset", "every third"])
@pytest.mark.parametrize("world", RANKS)
def test_ring_of_messages_on_every_type_and_size(rank_pool: Pools, world: int, layout: str) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(around_the_ring, layout))


def tags_out_of_order(rank: int, world: int, count: int) -> list[str]:
    """Rank 0 sends tags 0 to 9 twice; the others receive them in another order, the two of one tag in theirs."""
    if rank == 0:
        for peer in range(1, world):
            sends = [
                isend(torch.full((count,), float(100 * turn + tag)), peer, tag=tag)
                for turn in range(2)
                for tag in range(10)
            ]
            for send in reversed(sends):
                send.wait()
        return []
    got = {}
    order = [(tag * 7 + 3 * rank) % 10 for tag in range(10)]
    for turn in range(2):
        for tag in order:
            tensor = torch.empty(count)
            dist.recv(tensor, 0, tag=tag)
            got[turn, tag] = tensor
    return [f"rank {rank}: tag {tag}: {t[:3]}" for (turn, tag), t in got.items() if not (t == 100 * turn + tag).all()]


@pytest.mark.parametrize("count", [1, 300, 50_000])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_tags_match_in_any_order(rank_pool: Pools, world: int, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(tags_out_of_order, count))


def posted_before_sent(rank: int, world: int) -> list[str]:
    """Receives stand first, tags reversed; waits go in yet another order."""
    peer = rank ^ 1
    tensors = {tag: torch.empty(2000) for tag in range(8)}
    works = {tag: irecv(tensors[tag], peer, tag=tag) for tag in reversed(range(8))}
    dist.barrier()
    sends = [isend(torch.full((2000,), float(tag + 10 * rank)), peer, tag=tag) for tag in range(8)]
    for tag in (3, 0, 7, 1, 6, 2, 5, 4):
        works[tag].wait()
    for send in sends:
        send.wait()
    return [f"rank {rank}: tag {tag}" for tag, t in tensors.items() if not (t == tag + 10 * peer).all()]


@pytest.mark.parametrize("world", [2, 4])
def test_receives_may_be_posted_first(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(posted_before_sent))


def from_anyone(rank: int, world: int, count: int) -> list[str]:
    if rank != 0:
        for i in range(5):
            dist.send(torch.full((count,), float(10 * rank + i)), 0, tag=4)
        return []
    seen: dict[int, list[float]] = {}
    for _ in range(5 * (world - 1)):
        tensor = torch.empty(count)
        source = dist.recv(tensor, tag=4)
        seen.setdefault(source, []).append(tensor[-1].item())
    wanted = {r: [10.0 * r + i for i in range(5)] for r in range(1, world)}
    return [] if seen == wanted else [f"from any source, {count} elements: {seen}"]


@pytest.mark.parametrize("count", [1, 100, 50_000])
@pytest.mark.parametrize("world", [2, 4])
def test_any_source_says_who_sent_and_keeps_each_senders_order(rank_pool: Pools, world: int, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(from_anyone, count))


def to_myself(rank: int, world: int, count: int) -> list[str]:
    wrong = []
    got = torch.empty(count)
    sending = isend(torch.full((count,), 1.0), rank, tag=1)
    dist.recv(got, rank, tag=1)
    sending.wait()
    receiving = irecv(got2 := torch.empty(count), rank, tag=2)
    isend(torch.full((count,), 2.0), rank, tag=2)  # torch's blocking send refuses one's own rank
    receiving.wait()
    if not ((got == 1).all() and (got2 == 2).all()):
        wrong.append(f"rank {rank}: {got[:2]} {got2[:2]}")
    return wrong


@pytest.mark.parametrize("count", [1, 100_000])
@pytest.mark.parametrize("world", [1, 2])
def test_a_rank_may_send_to_itself(rank_pool: Pools, world: int, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(to_myself, count))


def beside_collectives(rank: int, world: int) -> list[str]:
    """A receive that nobody serves yet must not hold up collectives."""
    wrong = []
    got = torch.empty(30_000)
    receiving = irecv(got, (rank + 1) % world, tag=5)
    for i in range(20):
        tensor = torch.full((10_000,), float(i))
        dist.all_reduce(tensor)
        if not (tensor == i * world).all():
            wrong.append(f"rank {rank}: all_reduce {i}")
    dist.send(torch.full((30_000,), float(rank)), (rank - 1) % world, tag=5)
    receiving.wait()
    if not (got == (rank + 1) % world).all():
        wrong.append(f"rank {rank}: message")
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_a_pending_message_does_not_stall_collectives(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(beside_collectives))


def batch(rank: int, world: int) -> list[str]:
    """All pairs at once, receives before sends on even ranks and after them on odd ones."""
    tensors = [torch.empty(5000) for _ in range(world)]
    sends = [dist.P2POp(dist.isend, torch.full((5000,), float(10 * rank + p)), p) for p in range(world) if p != rank]
    receives = [dist.P2POp(dist.irecv, tensors[p], p) for p in range(world) if p != rank]
    works = dist.batch_isend_irecv(receives + sends if rank % 2 == 0 else sends + receives)
    for work in works:
        work.wait()
    return [f"rank {rank}: from {p}" for p in range(world) if p != rank and not (tensors[p] == 10 * p + rank).all()]


@pytest.mark.parametrize("world", [2, 4])
def test_batches_of_messages(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(batch))


def behind_many(rank: int, world: int, count: int) -> bool:
    """Rank 1 waits for a message behind `count` that it has not asked for yet; the large one is sent all the same."""
    large = torch.full((1 << 18,), 5.0)
    got = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        sends = [isend(torch.tensor([i]), 1, tag=1) for i in range(count)]
        answer = torch.zeros_like(large)
        dist.recv(answer, 1, tag=2)
        dist.send(torch.tensor([7]), 1, tag=3)
        for work in sends:
            work.wait()
        return torch.equal(answer, large)
    if rank == 1:
        last = irecv(got, 0, tag=3)
        dist.send(large, 0, tag=2)
        last.wait()
        wrong = 0
        for i in range(count):
            one = torch.zeros(1, dtype=torch.int64)
            dist.recv(one, 0, tag=1)
            wrong += one.item() != i
        return got.item() == 7 and wrong == 0
    return True


def test_messages_come_behind_many_that_nobody_has_asked_for(rank_pool: Pools) -> None:
    assert rank_pool(2, backend="ringcomm").run(behind_many, 6000, timeout=60) == [True, True]
