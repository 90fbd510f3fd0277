"""Reading located values with the errors a user needs, each with its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from ringcomm.config.located import Located, bare
from ringcomm.errors import ConfigError


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f" (nearest: {near[0]!r})" if near else ""


def _shown(item: Located) -> str:
    text = repr(bare(item))
    return text if len(text) <= 120 else f"{text[:117]}..."


def mapping(item: Located | None, what: str, allowed: Iterable[str] | None) -> dict[str, Located]:
    """The entries of a mapping, refused where a key is not allowed (None: any is)."""
    if item is None or item.value is None:
        return {}
    if not isinstance(item.value, dict):
        raise ConfigError(f"{item.where}: {what} must be a mapping of keys to values, not {_shown(item)}")
    known = list(item.value if allowed is None else allowed)
    for name, entry in item.value.items():
        if name not in known:
            near = nearest(name, known)
            raise ConfigError(f"{entry.where}: unknown key {name!r} in {what}{near}; allowed are {', '.join(known)}")
    return item.value


def items(item: Located | None, what: str) -> list[Located]:
    if item is None or item.value is None:
        return []
    if not isinstance(item.value, list):
        raise ConfigError(f"{item.where}: {what} must be a list, not {_shown(item)}")
    return item.value


def parse(dotted: str, field_: Any, item: Located) -> Any:
    kind = field_.metadata["kind"]
    try:
        return kind.parse(item.value)
    except ConfigError as error:  # a list, which knows the place of its entry
        raise ConfigError(f"{error} ({dotted})") from None
    except ValueError:
        raise ConfigError(f"{item.where}: {dotted} is {_shown(item)}; allowed is {kind.allowed}") from None
