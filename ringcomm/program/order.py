"""The order of reductions: the one tree over group ranks, and which plans realise it (docs/numerics.md).

The tree over n operands splits at the largest power of two below n, the earlier operands left: 0, 0 + 1, (0 + 1) + 2,
(0 + 1) + (2 + 3), ... A step combines its sources by it, and `numerics.reproducible` asks that whole results are it.
"""

from __future__ import annotations

from collections.abc import Sequence


class Trees:
    """Expressions without their roundings, as small integers: equal numbers mean the same operands in the same tree."""

    def __init__(self) -> None:
        self._numbers: dict[int | tuple[int, int], int] = {}
        self._parts: list[int | tuple[int, int]] = []

    def leaf(self, rank: int) -> int:
        return self._intern(rank)

    def over(self, operands: Sequence[int]) -> int:
        """The tree whose leaves are these trees, in this order; at least one."""
        if len(operands) == 1:
            return operands[0]
        left = 1 << (len(operands) - 1).bit_length() - 1
        return self._intern((self.over(operands[:left]), self.over(operands[left:])))

    def over_ranks(self, ranks: int) -> int:
        """The tree over all ranks of a group."""
        return self.over([self.leaf(rank) for rank in range(ranks)])

    def parts(self, tree: int) -> set[int]:
        """The tree and all trees in it."""
        found, todo = set(), [tree]
        while todo:
            part = todo.pop()
            found.add(part)
            inside = self._parts[part]
            if isinstance(inside, tuple):
                todo += inside
        return found

    def text(self, tree: int) -> str:
        """Such as (0 + 1) + 2; numbers are group ranks."""
        part = self._parts[tree]
        if isinstance(part, int):
            return str(part)
        left, right = (f"({text})" if " " in text else text for text in map(self.text, part))
        return f"{left} + {right}"

    def _intern(self, part: int | tuple[int, int]) -> int:
        # A rank and a pair never compare equal, so one table holds both.
        number = self._numbers.setdefault(part, len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
        return number
