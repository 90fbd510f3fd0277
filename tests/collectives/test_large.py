"""Messages over 2 GiB: counts and offsets beyond 32 bits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from ranks import RankPool

SIZE = (1 << 31) + 4099  # bytes, of uint8

pytestmark = pytest.mark.long


def pattern() -> torch.Tensor:
    """A period of 251 bytes, a prime: a piece from any wrong offset shows."""
    return torch.arange(251, dtype=torch.uint8).repeat(SIZE // 251 + 1)[:SIZE]


def broadcast_large(rank: int, world: int) -> bool:
    tensor = pattern() if rank == 1 else torch.zeros(SIZE, dtype=torch.uint8)
    dist.broadcast(tensor, 1)
    return torch.equal(tensor, pattern())


def all_reduce_large(rank: int, world: int) -> bool:
    """251 + 251 fits no byte, so sums wrap; the same everywhere."""
    tensor = pattern()
    dist.all_reduce(tensor)
    return torch.equal(tensor, pattern().mul_(world))


def message_large(rank: int, world: int) -> bool:
    if rank == 0:
        dist.send(pattern(), 1)
        return True
    tensor = torch.zeros(SIZE, dtype=torch.uint8)
    dist.recv(tensor, 0)
    return torch.equal(tensor, pattern())


@pytest.mark.parametrize("body", [broadcast_large, all_reduce_large, message_large])
def test_over_two_gibibytes(body) -> None:  # type: ignore[no-untyped-def]
    with RankPool(2, backend="ringcomm") as pool:
        assert pool.run(body, timeout=300) == [True, True]
