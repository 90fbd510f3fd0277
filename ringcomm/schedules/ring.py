"""Ring: every rank sends to the next one only. Reduce-scatter walks the sums round, all-gather the results.

all_reduce at n = 4, what rank 0 puts on the pair 0 -> 1 in one loop (r reduces what came in with its own input):

    chunk 3 (own input) | chunk 2 (r) | chunk 1 (r) | chunk 0 (r, finished) | chunk 3 | chunk 2    forwarded results
    ------------- reduce-scatter: n - 1 slots ----- | ------------- all-gather: n - 1 slots -----

Chunk c starts at rank c + 1 and comes home to rank c, so rank c owns it as in reduce_scatter. A step takes and puts at
once, so a ring needs 2 slots per FIFO.

Lending. Chunk c comes back to each rank as a result, made from what the rank sent of it; so all that is sent from
memory may be lent, in place too. A partial sum without a place of its own is copied.

Lag. A FIFO is taken in the order it was filled, so on one connection every slot must be taken with the same number of
loops of delay. At n = 2 each step may lag one loop behind the one before (2 slots a loop, 4 slots in all); for larger
n that would need more than 4 slots, so the two phases lag instead: reduce-scatter 0, all-gather 1, 3 slots at any n.
That splits the turn into reduce and send, because its slot is taken in one phase and put in the other.
"""

from __future__ import annotations

from ringcomm.program.build import Builder, in_rank_order, local_program
from ringcomm.program.ops import Lend, Problem, Program, Ref


def all_reduce_ring(problem: Problem) -> Program:
    """Fused reduce-scatter and all-gather; bandwidth-optimal.

    Steps: 3 if n == 2 else 2*n
    Bytes: 2*(n - 1)/n*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem, cut=n)
    following, previous = b.pair_to((rank + 1) % n), b.pair_from((rank - 1) % n)
    each_step_lags = n == 2 and problem.slots >= 4
    phases_lag = n > 2 and problem.slots >= 3
    b.send(b.input((rank - 1) % n), following, lend=Lend.always)
    for k in range(2, n):
        chunk = (rank - k) % n
        b.reduce_send(_added(b, previous, chunk), following, chunk=b.input(chunk))
    own = b.output(rank)
    gather_lag = 2 if each_step_lags else 1 if phases_lag else 0
    if phases_lag:
        b.reduce(_added(b, previous, rank), own, finish=True)
        b.send(own, following, lag=gather_lag, lend=Lend.always)
    else:
        operands, lag = _added(b, previous, rank), 1 if each_step_lags else 0
        b.reduce_send(operands, following, dst=own, finish=True, lag=lag, lend=Lend.always)
    for k in range(1, n - 1):
        b.forward(previous, following, dst=b.output((rank - k) % n), lag=gather_lag, lend=Lend.always)
    b.receive(previous, b.output((rank + 1) % n), lag=gather_lag)
    return b.program()


def all_gather_ring(problem: Problem) -> Program:
    """Each shard is forwarded round the ring.

    Steps: n + 1
    Bytes: (n - 1)/n*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem)
    following, previous = b.pair_to((rank + 1) % n), b.pair_from((rank - 1) % n)
    lag = 1 if n == 2 and problem.slots >= 2 else 0
    b.send(b.input(), following, lend=Lend.always)
    b.copy(b.input(), b.output(rank))
    for k in range(1, n - 1):
        b.forward(previous, following, dst=b.output((rank - k) % n), lend=Lend.always)
    b.receive(previous, b.output((rank + 1) % n), lag=lag)
    return b.program()


def reduce_scatter_ring(problem: Problem) -> Program:
    """Part c starts at rank c + 1 and gathers contributions on its way to rank c.

    Steps: n
    Bytes: (n - 1)/n*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem)
    following, previous = b.pair_to((rank + 1) % n), b.pair_from((rank - 1) % n)
    lag = 1 if n == 2 and problem.slots >= 2 else 0
    b.send(b.input((rank - 1) % n), following)
    for k in range(2, n):
        chunk = (rank - k) % n
        b.reduce_send(_added(b, previous, chunk), following, chunk=b.input(chunk))
    b.reduce(_added(b, previous, rank), b.output(), finish=True, lag=lag)
    return b.program()


def _added(b: Builder, previous: Ref, chunk: int) -> list[Ref]:
    """What came round and the own input."""
    n, rank = b.problem.ranks, b.problem.rank
    return in_rank_order(b.input(chunk), rank, previous, (rank - 1) % n)
