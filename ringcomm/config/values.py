"""Kinds of setting values: how one is written, what is allowed, how it is shown. Knows no key and no file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

BYTE_UNITS = (
    {"B": 1}
    | {f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)}
    | {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}
)
BYTE_UNITS |= {"KB": 1000}
TIME_UNITS = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


class Kind(Protocol):
    """What a key accepts. `parse` raises ValueError for anything else; `allowed` is the text put into the error."""

    @property
    def allowed(self) -> str: ...

    def parse(self, raw: object) -> object: ...

    def show(self, value: object) -> str: ...


def _scaled(raw: object, units: dict[str, int], plain: int | None) -> int:
    """A whole number of base units from '64KiB', '1.5ms' or a plain number (`plain`: its unit; None: refused)."""
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise ValueError
    found = _NUMBER.fullmatch(str(raw))
    if not found:
        raise ValueError
    scale = units.get(found[2]) if found[2] else plain
    value = Fraction(found[1]) * (scale or 0)
    if scale is None or value.denominator != 1:
        raise ValueError
    return int(value)


def parse_bytes(raw: object) -> int:
    """Bytes from 65536, '65536', '64KiB', '1MB', '1.5MiB'. Raises ValueError for anything else (also bare 'K')."""
    return _scaled(raw, BYTE_UNITS, 1)


def show_bytes(value: int) -> str:
    """The shortest exact spelling: '64KiB', '1MB', '1000001B'."""
    if value == 0:
        return "0B"
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if value % BYTE_UNITS[unit] == 0:
            return f"{value // BYTE_UNITS[unit]}{unit}"
    return f"{value}B"


def show_ns(value: int) -> str:
    unit = next(u for u in ("s", "ms", "us", "ns") if value % TIME_UNITS[u] == 0)
    return f"{value // TIME_UNITS[unit]}{unit}" if value else "0us"


@dataclass(frozen=True)
class Whole:
    """A whole number from low to high, or `auto`."""

    low: int
    high: int
    auto: bool = False

    @property
    def allowed(self) -> str:
        return f"{'auto or ' if self.auto else ''}a whole number from {self.low} to {self.high}"

    def parse(self, raw: object) -> int | str:
        if self.auto and raw == "auto":
            return "auto"
        value = _scaled(raw, {}, 1)
        if not self.low <= value <= self.high:
            raise ValueError
        return value

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class Bytes:
    """A number of bytes from low to high, a multiple of `step`, or `auto`."""

    low: int
    high: int
    auto: bool = False
    step: int = 1

    @property
    def allowed(self) -> str:
        step = f", a multiple of {self.step}" if self.step > 1 else ""
        units = "units B, kB, MB, GB (1000) and KiB, MiB, GiB (1024)"
        return f"{'auto or ' if self.auto else ''}{show_bytes(self.low)} to {show_bytes(self.high)}{step}, with {units}"

    def parse(self, raw: object) -> int | str:
        if self.auto and raw == "auto":
            return "auto"
        value = parse_bytes(raw)
        if not self.low <= value <= self.high or value % self.step:
            raise ValueError
        return value

    def show(self, value: object) -> str:
        return show_bytes(value) if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Duration:
    """A time, kept in nanoseconds, from low to high ns, or `auto`. A unit is required: 80us, 1.5ms."""

    low: int
    high: int
    auto: bool = False

    @property
    def allowed(self) -> str:
        return (
            f"{'auto or ' if self.auto else ''}{show_ns(self.low)} to {show_ns(self.high)}, with a unit ns, us, ms or s"
        )

    def parse(self, raw: object) -> int | str:
        if self.auto and raw == "auto":
            return "auto"
        value = _scaled(raw, TIME_UNITS, None)
        if not self.low <= value <= self.high:
            raise ValueError
        return value

    def show(self, value: object) -> str:
        return show_ns(value) if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Choice:
    """One of a few words, which differ in more than their case: that of what is given does not count."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(self.words) if len(self.words) < 3 else "one of " + ", ".join(self.words)

    def parse(self, raw: object) -> str:
        for word in self.words:
            if word.lower() == str(raw).lower():
                return word
        raise ValueError

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class Words:
    """A list of some of a few words, each at most once; kept in the order of `words`."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"a list of some of {', '.join(self.words)}, such as [{self.words[0]}]"

    def parse(self, raw: object) -> tuple[str, ...]:
        if not isinstance(raw, list):
            raise ValueError
        given = [getattr(entry, "value", entry) for entry in raw]
        if any(given.count(word) > 1 or word not in self.words for word in given):
            raise ValueError
        return tuple(word for word in self.words if word in given)

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return f"[{', '.join(value)}]"


@dataclass(frozen=True)
class Flag:
    """true or false."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def parse(self, raw: object) -> bool:
        if not isinstance(raw, bool):
            raise ValueError
        return raw

    def show(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Text:
    """A non-empty text."""

    allowed: str

    def parse(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw:
            raise ValueError
        return raw

    def show(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True)
class Threshold:
    """A bound on the bytes of a message; with `/ranks` it is divided by the number of ranks of the group."""

    bytes: int
    per_rank: bool = False

    def at(self, ranks: int) -> int:
        return self.bytes // ranks if self.per_rank else self.bytes

    def __str__(self) -> str:
        return show_bytes(self.bytes) + ("/ranks" if self.per_rank else "")


@dataclass(frozen=True)
class ThresholdKind:
    """Bytes as in `64KiB`, or `128KiB/ranks`."""

    @property
    def allowed(self) -> str:
        return "0B to 1024TiB such as 64KiB or 1MB, or divided by the number of ranks: 128KiB/ranks"

    def parse(self, raw: object) -> Threshold:
        text, slash, by = str(raw).partition("/") if isinstance(raw, str) else (raw, "", "")
        if slash and str(by).strip() != "ranks":
            raise ValueError
        value = parse_bytes(text)
        if value > 1 << 50:
            raise ValueError
        return Threshold(value, bool(slash))

    def show(self, value: object) -> str:
        return str(value)
