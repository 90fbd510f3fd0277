"""Sets of small numbers as the kernel writes lists of CPUs: `0-3,8`."""

from __future__ import annotations

from collections.abc import Iterable


def parse_ranges(text: str) -> tuple[int, ...]:
    """The numbers of '0-3,8', rising and each once; none for ''. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ValueError(f"{text!r} is not a list of numbers; allowed are such as 0-3,8")
        low, high = int(first), int(last if dash else first)
        # A slip such as 0-99999999 must not fill the memory.
        if high < low or high - low > 1 << 20:
            raise ValueError(f"{part!r} is not a range; the second number must not be below the first")
        found |= set(range(low, high + 1))
    return tuple(sorted(found))


def show_ranges(numbers: Iterable[int]) -> str:
    """The shortest such text: [0, 1, 2, 8] is '0-2,8'."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
