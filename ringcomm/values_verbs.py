"""Kinds of setting values about RDMA: which ports of which devices. Knows no key."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringcomm.errors import ConfigError
from ringcomm.located import Located

_ENTRY = re.compile(r"(\^?)(=?)([^\s,=^/:]{1,63})(?::([1-9][0-9]{0,2}))?")


@dataclass(frozen=True)
class HcaPattern:
    """One entry: `mlx5` (devices that begin so), `=mlx5_1` (that device), `^...` (all but those); `:1` its port 1."""

    name: str
    port: int | None = None
    exact: bool = False
    excluded: bool = False

    def fits(self, device: str, port: int) -> bool:
        named = device == self.name if self.exact else device.startswith(self.name)
        return named and self.port in (None, port)

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return "^" * self.excluded + "=" * self.exact + self.name + port


@dataclass(frozen=True)
class Hcas:
    """Which ports may be used: those that a pattern names, or all where none does, less those excluded."""

    patterns: tuple[HcaPattern, ...]

    def allow(self, device: str, port: int) -> bool:
        wanted = [p for p in self.patterns if not p.excluded]
        if any(p.excluded and p.fits(device, port) for p in self.patterns):
            return False
        return not wanted or any(p.fits(device, port) for p in wanted)

    @property
    def names_some(self) -> bool:
        """Whether a pattern asks for ports, and does not only leave some out."""
        return any(not p.excluded for p in self.patterns)

    def order(self, device: str, port: int) -> int:
        """The place of the first pattern that asks for it: so are rails numbered."""
        return next((i for i, p in enumerate(self.patterns) if not p.excluded and p.fits(device, port)), 0)

    def __str__(self) -> str:
        return ",".join(map(str, self.patterns))


class HcasKind:
    """A list of patterns or, as NCCL has it, a text in which a mark at the beginning holds for all names."""

    @property
    def allowed(self) -> str:
        return (
            "a list of RDMA devices, each `mlx5` (names that begin so), `=mlx5_1` (exactly), `^mlx5_2` (not those), "
            "with `:1` for one port; or one text such as `=mlx5_0:1,mlx5_1:1`, whose first mark holds for all its names"
        )

    def parse(self, raw: object) -> Hcas:
        """Raises ConfigError with the place of the entry at fault, else ValueError."""
        if isinstance(raw, str):
            marks = "^" * raw.startswith("^") + "=" * raw.lstrip("^").startswith("=")
            return Hcas(tuple(_pattern(marks + name.strip().lstrip("^=")) for name in raw.split(",")))
        if not isinstance(raw, list) or not raw:
            raise ValueError
        return Hcas(tuple(_entry(item) for item in raw))

    def show(self, value: object) -> str:
        return str(value)


def _pattern(text: str) -> HcaPattern:
    found = _ENTRY.fullmatch(text)
    if not found:
        raise ValueError
    return HcaPattern(found[3], int(found[4]) if found[4] else None, bool(found[2]), bool(found[1]))


def _entry(item: Located) -> HcaPattern:
    try:
        if isinstance(item.value, str):
            return _pattern(item.value.strip())
    except ValueError:
        pass
    raise ConfigError(f"{item.where}: {item.value!r} is no RDMA device; allowed are mlx5, =mlx5_1, ^mlx5_2, =mlx5_0:1")
