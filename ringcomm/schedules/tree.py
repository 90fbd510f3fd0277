"""Trees. all_reduce over two binary trees at once, each carrying half of the message; broadcast and reduce over one.

The two trees of all_reduce at n = 4 (leaves of one are inside the other, so no rank works twice as much as another):

    chunk 0:      3            chunk 1:    0
                  |                        |
                  1                        2
                 / \\                      / \\
                0   2                    1   3

Sums go up, results come down. In-order numbering (left subtree < node < right subtree) keeps the operands of chunk 0 in
rank order; one rank, the root, makes each result and the others copy it, so all get equal bits.

Lag. Level by level, each hop one loop: a rank at depth d in trees of height H reduces at lag H - d and passes results
down at lag H + d. Every slot is thus taken one loop after it was put, which keeps each FIFO in order
although a pair may carry one tree's sums and the other's results, and a long message fills all levels at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringcomm.program.build import Builder, local_program
from ringcomm.program.ops import Lend, Problem, Program

# Found with the verifier: one loop of distance on pairs that carry up to two slots a loop (2 deadlock at n = 2 and 3).
SLOTS_TO_PIPELINE = 3


@dataclass(frozen=True)
class Place:
    """One rank's place in one tree."""

    parent: int | None
    children: tuple[int, ...]
    depth: int


def all_reduce_tree(problem: Problem) -> Program:
    """Double binary tree: up and down in about 2*log2(n) hops.

    Steps: min(n + 1, 4)
    Bytes: 2*S if n > 3 else n*S/2
    """
    if problem.ranks == 1:
        return local_program(problem)
    n, rank = problem.ranks, problem.rank
    b = Builder(problem, cut=2)
    height = double_tree_height(n)
    pipelined = problem.slots >= SLOTS_TO_PIPELINE
    # Up and down of one tree stay together: the root does both in one step, so this order holds on every pair.
    for chunk, place in enumerate(double_tree(rank, n)):
        _up(b, chunk, place, lag=height - place.depth if pipelined else 0)
        _down(b, chunk, place, lag=height + place.depth if pipelined else 0)
    return b.program()


def _up(b: Builder, chunk: int, place: Place, lag: int) -> None:
    operands = [b.input(chunk) if i == b.problem.rank else b.pair_from(i) for i in _sorted(b, place)]
    if place.parent is None:
        below = [b.pair_to(child) for child in place.children]
        b.reduce_send(operands, *below, dst=b.output(chunk), finish=True, lag=lag, lend=Lend.always)
    elif place.children:
        b.reduce_send(operands, b.pair_to(place.parent), chunk=b.input(chunk), lag=lag)
    else:
        b.send(b.input(chunk), b.pair_to(place.parent), lag=lag, lend=Lend.always)


def _down(b: Builder, chunk: int, place: Place, lag: int) -> None:
    if place.parent is None:
        return
    above, below = b.pair_from(place.parent), [b.pair_to(child) for child in place.children]
    if below:
        b.forward(above, *below, dst=b.output(chunk), lag=lag, lend=Lend.always)
    else:
        b.receive(above, b.output(chunk), lag=lag)


def _sorted(b: Builder, place: Place) -> list[int]:
    return sorted((*place.children, b.problem.rank))


def broadcast_tree(problem: Problem) -> Program:
    """One binary tree, numbered level by level from the root.

    Steps: 2
    Bytes: S if n < 3 else 2*S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    parent, children = _level_order(problem)
    below = [b.pair_to(child) for child in children]
    if parent is None:
        b.send(b.input(), *below, lend=Lend.always)
        b.copy(b.input(), b.output())
        b.drain()
    elif below:
        b.forward(b.pair_from(parent), *below, dst=b.output(), lend=Lend.always)
    else:
        b.receive(b.pair_from(parent), b.output())
    return b.program()


def reduce_tree(problem: Problem) -> Program:
    """The same tree upwards; each rank adds its own input to what its children send.

    Steps: 1
    Bytes: S
    """
    if problem.ranks == 1:
        return local_program(problem)
    b = Builder(problem)
    parent, children = _level_order(problem)
    operands = [b.input() if i == problem.rank else b.pair_from(i) for i in sorted((*children, problem.rank))]
    if parent is None:
        b.reduce(operands, b.output(), finish=True)
    elif children:
        b.reduce_send(operands, b.pair_to(parent), chunk=b.input())
    else:
        b.send(b.input(), b.pair_to(parent))
    return b.program()


def _level_order(problem: Problem) -> tuple[int | None, list[int]]:
    """(parent, children) in the tree where the root is 0, its children 1 and 2, theirs 3 to 6, and so on."""
    n, root = problem.ranks, problem.root or 0
    at = (problem.rank - root) % n
    parent = None if at == 0 else ((at - 1) // 2 + root) % n
    return parent, [(child + root) % n for child in (2 * at + 1, 2 * at + 2) if child < n]


def double_tree(member: int, n: int) -> tuple[Place, Place]:
    """A member's places in the two trees over n members."""
    return _place(member, n, _first_label), _place(member, n, _second_label)


def double_tree_height(n: int) -> int:
    """The depth of the deepest member of either tree."""
    return max(_in_order_depth(label, n) for label in range(1, n + 1))


def _in_order_parent(label: int, n: int) -> int | None:
    """Parent in the binary tree over labels 1..n in which a label's height is the number of its trailing zero bits.

    The parent at the next height has the label's lowest bit moved up by one; past n, the subtree's other neighbour is
    the nearest label above it.
    """
    low = label & -label
    rest = label ^ low
    parent = rest | low << 1
    return (parent if parent <= n else rest) or None


def _in_order_depth(label: int, n: int) -> int:
    parent = _in_order_parent(label, n)
    return 0 if parent is None else 1 + _in_order_depth(parent, n)


def _first_label(rank: int, n: int) -> int:
    return rank + 1


def _second_label(rank: int, n: int) -> int:
    """Mirrored (n even) or shifted (n odd), so that odd labels, the leaves, fall on even labels of the first tree."""
    return n - rank if n % 2 == 0 else (rank + 1) % n + 1


def _place(rank: int, n: int, label_of: Callable[[int, int], int]) -> Place:
    labels = {label_of(i, n): i for i in range(n)}
    label = label_of(rank, n)
    parent = _in_order_parent(label, n)
    children = tuple(labels[child] for child in range(1, n + 1) if _in_order_parent(child, n) == label)
    return Place(None if parent is None else labels[parent], children, _in_order_depth(label, n))
