"""Kinds of setting values about networks: which interfaces, which ports. Knows no key."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringcomm.errors import ConfigError
from ringcomm.located import Located

_NAME = re.compile(r"[^\s,=^/]{1,15}")  # what the kernel allows, less our marks
_RANGE = re.compile(r"\s*([0-9]+)\s*[-:]\s*([0-9]+)\s*")


@dataclass(frozen=True)
class Pattern:
    """One entry: `eth` (names that begin so), `=eth0` (that name), `^docker`, `^=docker0` (all but those)."""

    name: str
    exact: bool = False
    excluded: bool = False

    def fits(self, interface: str) -> bool:
        return interface == self.name if self.exact else interface.startswith(self.name)

    def __str__(self) -> str:
        return "^" * self.excluded + "=" * self.exact + self.name


@dataclass(frozen=True)
class Interfaces:
    """Which interfaces may be used: those that a pattern names, or all where none does, less those excluded."""

    patterns: tuple[Pattern, ...]

    def allow(self, interface: str) -> bool:
        wanted = [p for p in self.patterns if not p.excluded]
        if any(p.excluded and p.fits(interface) for p in self.patterns):
            return False
        return not wanted or any(p.fits(interface) for p in wanted)

    def names(self, interface: str) -> bool:
        """Whether a pattern asks for it: what would be left out otherwise (loopback) is used then."""
        return self.allow(interface) and any(p.fits(interface) for p in self.patterns)

    def __str__(self) -> str:
        return ",".join(map(str, self.patterns))


class InterfacesKind:
    """A list of patterns or, as NCCL has it, a text in which a mark at the beginning holds for all names."""

    @property
    def allowed(self) -> str:
        return (
            "a list of interfaces, each `eth` (names that begin so), `=eth0` (exactly), `^docker` or `^=docker0` (not "
            "those); or one text such as `=eth0,eth1`, whose first mark holds for all its names"
        )

    def parse(self, raw: object) -> Interfaces:
        """Raises ConfigError with the place of the entry at fault, else ValueError."""
        if isinstance(raw, str):
            marks = _marks(raw)
            return Interfaces(tuple(_pattern(marks + name.strip().lstrip("^=")) for name in raw.split(",")))
        if not isinstance(raw, list) or not raw:
            raise ValueError
        return Interfaces(tuple(_entry(item) for item in raw))

    def show(self, value: object) -> str:
        return str(value)


def _marks(text: str) -> str:
    return "^" * text.startswith("^") + "=" * text.lstrip("^").startswith("=")


def _pattern(text: str) -> Pattern:
    marks = _marks(text)
    name = text[len(marks) :]
    if not _NAME.fullmatch(name):
        raise ValueError
    return Pattern(name, "=" in marks, "^" in marks)


def _entry(item: Located) -> Pattern:
    try:
        if isinstance(item.value, str):
            return _pattern(item.value.strip())
    except ValueError:
        pass
    raise ConfigError(f"{item.where}: {item.value!r} is no interface; allowed are eth, =eth0, ^docker, ^=docker0")


class PortsKind:
    """Two port numbers, lowest and highest."""

    @property
    def allowed(self) -> str:
        return "[lowest, highest] or a text such as 40000-40099, from 1 to 65535"

    def parse(self, raw: object) -> tuple[int, int]:
        if isinstance(raw, str):
            found = _RANGE.fullmatch(raw)
            ends = [int(found[1]), int(found[2])] if found else []
        else:
            items = raw if isinstance(raw, list) else []
            ends = [item.value for item in items if type(item.value) is int]
        if len(ends) != 2 or not 1 <= ends[0] <= ends[1] <= 65535:
            raise ValueError
        return ends[0], ends[1]

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return f"{value[0]}-{value[1]}"
