"""Symbolic values: what a piece of memory or a slot holds, as a small integer that names one hash-consed expression.

Equal numbers mean the same operands combined in the same order with the same roundings, hence the same bits. A piece is
identified by where it is (length class and loop), so a value only says whose contributions it holds and how they met.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringcomm.program.order import Trees


class Values:
    """All expressions of one replay. `trees` holds the same without roundings, see `tree`."""

    def __init__(self, nranks: int) -> None:
        self.trees = Trees()
        self._everyone = (1 << nranks) - 1
        self._numbers: dict[tuple[object, ...], int] = {}
        self._masks: list[int] = []
        self._finished: list[bool] = []
        self._trees: list[int] = []
        self._operands: list[tuple[int, ...]] = []

    def input(self, rank: int, chunk: int) -> int:
        return self._intern(("in", rank, chunk), 1 << rank, False, self.trees.leaf(rank), ())

    def reduce(self, operands: Sequence[int], finish: bool) -> int:
        """The combination in this order. Raises ValueError with the rule broken (the caller knows the step)."""
        key = ("reduce", finish, *operands)
        known = self._numbers.get(key)
        if known is not None:
            return known
        mask = 0
        for value in operands:
            if self._finished[value]:
                raise ValueError("reduces a result that is finished already (it would be finished twice)")
            twice = mask & self._masks[value]
            if twice:
                raise ValueError(f"adds the contribution of {ranks_text(twice)} twice")
            mask |= self._masks[value]
        if finish and mask != self._everyone:
            missing = self._everyone & ~mask
            raise ValueError(f"finishes a result that lacks the contribution of {ranks_text(missing)}")
        tree = self.trees.over([self._trees[value] for value in operands])
        return self._intern(key, mask, finish, tree, tuple(operands))

    def missing(self, value: int) -> int:
        """Mask of the ranks whose contribution is not in this value."""
        return self._everyone & ~self._masks[value]

    def finished(self, value: int) -> bool:
        return self._finished[value]

    def tree(self, value: int) -> int:
        """The number in `trees` of what this value combines, and how."""
        return self._trees[value]

    def operands(self, value: int) -> tuple[int, ...]:
        """The values that one step combined into this one; none for an input."""
        return self._operands[value]

    def text(self, value: int) -> str:
        return f"{'finished' if self._finished[value] else 'unfinished'} data of {ranks_text(self._masks[value])}"

    def _intern(self, key: tuple[object, ...], mask: int, finished: bool, tree: int, operands: tuple[int, ...]) -> int:
        number = self._numbers.setdefault(key, len(self._masks))
        if number == len(self._masks):
            self._masks.append(mask)
            self._finished.append(finished)
            self._trees.append(tree)
            self._operands.append(operands)
        return number


def ranks_text(mask: int) -> str:
    ranks = [str(i) for i in range(mask.bit_length()) if mask >> i & 1]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
