"""Recursive halving: blocks of ranks join two by two, each join halving what a rank still works on. Then a fan-out.

A block of ranks [first, first + size) splits as the tree of docs/numerics.md does: the largest power of two below its
size on the left. For every chunk one rank of a block holds the block's sum; where two blocks join, one of the two
holders sends to the other, which keeps the left block on the left. So every chunk is combined by that very tree.

all_reduce at n = 4, who holds chunk 0 1 2 3:    blocks {0} {1} {2} {3}   each rank all of its own
                                                 join {0,1} {2,3}         0 1 0 1     2 3 2 3
                                                 join {0,1,2,3}           0 1 2 3     ==[results]==> fan-out

A rank sends to about log2(n) others before the fan-out, where two_shot sends to all (where n is no power of two, the
last ranks to more); both send the same bytes. For large groups, whose pairs would take much memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from ringcomm.program.build import Builder, in_rank_order, local_program
from ringcomm.program.ops import Problem, Program, Ref


@dataclass(frozen=True)
class Block:
    """Ranks first to first + size - 1."""

    first: int
    size: int

    def __contains__(self, rank: int) -> bool:
        return self.first <= rank < self.first + self.size

    def halves(self) -> tuple[Block, Block]:
        left = 1 << (self.size - 1).bit_length() - 1
        return Block(self.first, left), Block(self.first + left, self.size - left)


@dataclass(frozen=True)
class Join:
    """For one chunk, where two blocks join: `sender` has one block's sum, `keeper` the other's and then both."""

    chunk: int
    sender: int
    keeper: int


def all_reduce_halving(problem: Problem) -> Program:
    """Joins from single ranks to the whole group, then each rank gives its chunk to all.

    Steps: 2*n - 1 + sum(-(-n // 2**k) for k in range(1, (n - 1).bit_length() + 1))
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem, cut=n)
    lag = 1 if problem.slots >= 2 else 0  # the next loop's joins go on while results are on their way
    partial = [b.input(chunk) for chunk in range(n)]
    joins = list(joins_of(rank, n, n))
    for joint in joins:
        _join(b, joint, partial, last=joint is joins[-1])
    b.send(b.output(rank), b.fan_out())
    for k in range(1, n):
        b.receive(b.fan_out_from((rank + k) % n), b.output((rank + k) % n), lag=lag)
    return b.program()


def _join(b: Builder, joint: list[Join], partial: list[Ref], last: bool) -> None:
    """Sends and takes in turn: a FIFO need not hold all chunks of a join at once."""
    rank = b.problem.rank
    sends = [join for join in joint if join.sender == rank]
    takes = [join for join in joint if join.keeper == rank]
    for send, take in zip_longest(sends, takes):
        if send is not None:
            b.send(partial[send.chunk], b.pair_to(send.keeper))
        if take is not None:
            operands = in_rank_order(partial[take.chunk], rank, b.pair_from(take.sender), take.sender)
            b.reduce(operands, b.output(take.chunk), finish=last)
            partial[take.chunk] = b.output(take.chunk)


def path_of(member: int, n: int) -> list[Block]:
    """The blocks that a member is in, the smallest that joins two others first."""
    path = [Block(0, n)]
    while path[-1].size > 1:
        path.append(next(half for half in path[-1].halves() if member in half))
    return path[-2::-1]


def joins_of(member: int, n: int, chunks: int) -> Iterator[list[Join]]:
    """One list per join the member's blocks take part in, the smallest first. Member c of n ends with chunk c."""
    for block in path_of(member, n):
        joins = [_join_of(block, chunk) for chunk in range(chunks)]
        yield [join for join in joins if member in (join.sender, join.keeper)]


def _join_of(block: Block, chunk: int) -> Join:
    left, right = (_holder(half, chunk) for half in block.halves())
    keeper = _holder(block, chunk)
    return Join(chunk, right if keeper == left else left, keeper)


def _holder(block: Block, chunk: int) -> int:
    """Who has the block's sum of a chunk: the chunk's own rank if it is inside, else spread by the chunk's number."""
    while block.size > 1:
        left, right = block.halves()
        goes_right = chunk in right if chunk in block else bool(chunk & left.size)
        block = right if goes_right else left
    return block.first
