"""What `bench` times: each operation with inputs whose exact result is known, and the formulas of its bandwidth.

Inputs repeat every PERIOD elements, a prime, so a piece in a wrong place shows unless it is off by a multiple of it.
Values are whole numbers small enough that every partial result is exact in the dtype: results are compared bit for bit.

S is the whole message in bytes: what every rank ends up with (all_reduce, broadcast, all_gather, gather on its root) or
starts with (reduce_scatter, all_to_all, reduce, scatter on its root). With t the time of one call and n ranks

    algbw = S / t              busbw = factor * algbw

    all_reduce                                              factor 2(n-1)/n  each byte leaves a rank twice but its share
    all_gather reduce_scatter all_to_all gather scatter     factor (n-1)/n   one share of n stays at home
    broadcast reduce                                        factor 1         the busiest link carries the message once
    sendrecv (rank 0 to 1 and back)                         factor 2         two messages of S in t, one after the other

so busbw can be compared with the speed of the hardware whatever n is (the definitions of NVIDIA's nccl-tests).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import ringcomm

PERIOD = 1021
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "avg": lambda x: x.sum(0) // len(x),
    "product": lambda x: x.prod(0),
    "min": lambda x: x.amin(0),
    "max": lambda x: x.amax(0),
}
# The largest N such that all whole numbers up to N are exact in the dtype.
EXACT = {
    "float64": 1 << 20,
    "float32": 1 << 20,
    "float16": 2048,
    "bfloat16": 256,
    "float8_e4m3fn": 16,
    "float8_e5m2": 8,
    "int64": 1 << 20,
    "int32": 1 << 20,
    "int16": 32767,
    "int8": 127,
    "uint8": 255,
    "uint16": 65535,
    "uint32": 1 << 20,
    "uint64": 1 << 20,
    "bool": 1,
}
# Torch 2.13 renames two functions and warns about their old names.
_all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Case:
    """One row: an operation, its data, and how it is called."""

    op: str
    nbytes: int
    """As asked; the operation rounds it down to whole elements per rank, at least one."""
    dtype: str
    redop: str
    """'' where the operation does not reduce."""
    in_place: bool
    parts: int
    """0: one blocking call. k: k asynchronous calls of a k-th of the bytes, waited by their futures, as DDP does."""


def operands(redop: str, ranks: int, dtype: str) -> torch.Tensor:
    """int64 [ranks, PERIOD]: the inputs of a reduction, with every partial result exact in the dtype."""
    limit, draw = EXACT[dtype], torch.Generator().manual_seed(ranks)
    index, rank = torch.arange(PERIOD), torch.arange(ranks)[:, None]
    if redop == "product":
        # A two from one rank at each element, and one from another; never above 4 in all.
        two = (index % ranks == rank).long() + (limit >= 4) * (index // ranks % ranks == rank).long()
        return 2**two if limit >= 2 else torch.ones(ranks, PERIOD, dtype=torch.int64)
    if redop in ("min", "max") and limit < 4 * ranks:
        # Drawn values would be nearly everywhere the same: one rank decides at every other element.
        hot = (index % (2 * ranks) == rank).long()
        return limit * (hot if redop == "max" else 1 - hot)
    if redop in ("min", "max"):
        return torch.randint(0, limit + 1, (ranks, PERIOD), generator=draw)
    share = limit // ranks
    if redop == "avg":
        # base + d on the first ranks, base - d on the last ones: the sum is ranks * base, and no part of it is larger.
        base = torch.randint(1, max(share, 1) + 1, (PERIOD,), generator=draw)
        sign = (rank < ranks // 2).long() - (rank >= ranks - ranks // 2).long()
        return base + sign * (base - 1)
    if share >= 1:
        return torch.randint(1, share + 1, (ranks, PERIOD), generator=draw)
    return ((index + rank) % ranks < limit).long()


def payload(rank: int, dtype: str) -> torch.Tensor:
    """int64 [PERIOD]: what a rank sends where nothing is reduced."""
    return torch.randint(0, EXACT[dtype] + 1, (PERIOD,), generator=torch.Generator().manual_seed(1000 + rank))


def fill(x: torch.Tensor, values: torch.Tensor, start: int = 0) -> None:
    """x[i] = values[(start + i) % PERIOD] for a 1-d contiguous x."""
    period = values.roll(-start).to(x.dtype)
    whole = x.numel() // PERIOD * PERIOD
    x[:whole].view(-1, PERIOD).copy_(period.expand(whole // PERIOD, PERIOD))
    x[whole:].copy_(period[: x.numel() - whole])


def count_wrong(x: torch.Tensor, values: torch.Tensor, start: int = 0) -> int:
    """How many elements of x have other bits than `fill` would give them."""
    bits = _BITS[x.element_size()]
    period = values.roll(-start).to(x.dtype).view(bits)
    whole = x.numel() // PERIOD * PERIOD
    wrong = (x[:whole].view(bits).view(-1, PERIOD) != period).sum() + (
        x[whole:].view(bits) != period[: x.numel() - whole]
    ).sum()
    return int(wrong)


class Operation:
    """One operation on this rank's tensors. reset() fills them, call() runs once, wrong() counts wrong elements here.

    `count` elements of the dtype make the whole message; tensors are 1-d.
    """

    reduces = False
    split = False
    """Whether the message is one share per rank."""
    places: tuple[str, ...] = ("in",)
    asynchronous = True

    def __init__(self, case: Case, rank: int, ranks: int, root: int = 0, registered: bool = False) -> None:
        self.case, self.rank, self.ranks, self.root, self.registered = case, rank, ranks, root, registered
        self.dtype = getattr(torch, case.dtype)
        size = torch.empty(0, dtype=self.dtype).element_size()
        elements = max(1, case.nbytes // max(1, case.parts) // size)
        self.share = max(1, elements // ranks)
        self.count = self.share * ranks if self.split else elements
        self.nbytes = self.count * size
        self.start = rank * self.share
        if self.reduces:
            self.inputs = operands(case.redop, ranks, case.dtype)
            self.expected = REDUCTIONS[case.redop](self.inputs)
        else:
            self.inputs = torch.stack([payload(r, case.dtype) for r in range(ranks)])
        self.build()

    @staticmethod
    def factor(ranks: int) -> float:
        return (ranks - 1) / ranks

    def new(self, count: int) -> torch.Tensor:
        return (ringcomm if self.registered else torch).empty(count, dtype=self.dtype)

    def rewrite(self) -> None:
        """Writes what is given anew, with the same values, as an application would between two calls."""
        given: torch.Tensor | None = getattr(self, "x", None)
        if given is not None:
            given.view(torch.uint8).add_(0)

    def own(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's share of a tensor of all shares."""
        return x[self.start : self.start + self.share]

    def redop(self) -> dist.ReduceOp.RedOpType:
        return getattr(dist.ReduceOp, self.case.redop.upper())

    def build(self) -> None: ...

    def reset(self) -> None: ...

    def call(self, group: Any, async_op: bool) -> Any: ...

    def wrong(self) -> int:
        return 0


class AllReduce(Operation):
    reduces = True

    @staticmethod
    def factor(ranks: int) -> float:
        return 2 * (ranks - 1) / ranks

    def build(self) -> None:
        self.x = self.new(self.count)

    def reset(self) -> None:
        fill(self.x, self.inputs[self.rank])

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.all_reduce(self.x, self.redop(), group, async_op)

    def wrong(self) -> int:
        return count_wrong(self.x, self.expected)


class Reduce(AllReduce):
    @staticmethod
    def factor(ranks: int) -> float:
        return 1.0

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.reduce(self.x, self.root, self.redop(), group, async_op)

    def wrong(self) -> int:
        return count_wrong(self.x, self.expected) if self.rank == self.root else 0


class Broadcast(Operation):
    @staticmethod
    def factor(ranks: int) -> float:
        return 1.0

    def build(self) -> None:
        self.x = self.new(self.count)

    def reset(self) -> None:
        fill(self.x, self.inputs[self.rank])

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.broadcast(self.x, self.root, group, async_op)

    def wrong(self) -> int:
        return count_wrong(self.x, self.inputs[self.root])


class AllGather(Operation):
    split = True
    places = ("out", "in")

    def build(self) -> None:
        self.out = self.new(self.count)
        self.x = self.own(self.out) if self.case.in_place else self.new(self.share)

    def reset(self) -> None:
        self.out.zero_()
        fill(self.x, self.inputs[self.rank])

    def call(self, group: Any, async_op: bool) -> Any:
        return _all_gather(self.out, self.x, group, async_op)

    def wrong(self) -> int:
        return sum(count_wrong(part, self.inputs[r]) for r, part in enumerate(self.out.split(self.share)))


class ReduceScatter(Operation):
    reduces = split = True
    places = ("out", "in")

    def build(self) -> None:
        self.x = self.new(self.count)
        self.out = self.own(self.x) if self.case.in_place else self.new(self.share)

    def reset(self) -> None:
        self.out.zero_()
        fill(self.x, self.inputs[self.rank])

    def call(self, group: Any, async_op: bool) -> Any:
        return _reduce_scatter(self.out, self.x, self.redop(), group, async_op)

    def wrong(self) -> int:
        return count_wrong(self.out, self.expected, self.start)


class AllToAll(Operation):
    split = True
    places = ("out",)

    def build(self) -> None:
        self.x, self.out = self.new(self.count), self.new(self.count)

    def reset(self) -> None:
        self.out.zero_()
        fill(self.x, self.inputs[self.rank])

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.all_to_all_single(self.out, self.x, None, None, group, async_op)

    def wrong(self) -> int:
        return sum(count_wrong(part, self.inputs[r], self.start) for r, part in enumerate(self.out.split(self.share)))


class Gather(Operation):
    split = True
    places = ("out",)

    def build(self) -> None:
        self.x = self.new(self.share)
        self.out = list(self.new(self.count).split(self.share)) if self.rank == self.root else None

    def reset(self) -> None:
        fill(self.x, self.inputs[self.rank])
        for part in self.out or []:
            part.zero_()

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.gather(self.x, self.out, self.root, group, async_op)

    def wrong(self) -> int:
        return sum(count_wrong(part, self.inputs[r]) for r, part in enumerate(self.out or []))


class Scatter(Operation):
    split = True
    places = ("out",)

    def build(self) -> None:
        self.out = self.new(self.share)
        self.x = self.new(self.count) if self.rank == self.root else None
        self.parts = list(self.x.split(self.share)) if self.x is not None else None

    def reset(self) -> None:
        self.out.zero_()
        if self.x is not None:
            fill(self.x, self.inputs[self.root])

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.scatter(self.out, self.parts, self.root, group, async_op)

    def wrong(self) -> int:
        return count_wrong(self.out, self.inputs[self.root], self.start)


class SendRecv(Operation):
    places = ("out",)
    asynchronous = False

    @staticmethod
    def factor(ranks: int) -> float:
        return 2.0

    def build(self) -> None:
        self.x, self.out = self.new(self.count), self.new(self.count)

    def reset(self) -> None:
        fill(self.x, self.inputs[0])
        self.out.zero_()

    def call(self, group: Any, async_op: bool) -> None:
        if self.rank == 0:
            dist.send(self.x, 1, group)
            dist.recv(self.out, 1, group)
        elif self.rank == 1:
            dist.recv(self.out, 0, group)
            dist.send(self.out, 0, group)

    def wrong(self) -> int:
        return count_wrong(self.out, self.inputs[0]) if self.rank < 2 else 0


class Barrier(Operation):
    places = ("out",)

    def call(self, group: Any, async_op: bool) -> Any:
        return dist.barrier(group, async_op)

    def build(self) -> None:
        self.count = self.nbytes = 0


OPERATIONS: dict[str, type[Operation]] = {
    "all_reduce": AllReduce,
    "broadcast": Broadcast,
    "reduce": Reduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "gather": Gather,
    "scatter": Scatter,
    "sendrecv": SendRecv,
    "barrier": Barrier,
}
