"""Frozen dataclasses to JSON values and back, with errors that name the place. Knows no class of ringcomm.

Understood are int, float, str, bool, `X | None`, `tuple[X, ...]` and dataclasses of these. A field with a default may
be left out of the JSON; a key that no field has is refused.
"""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

T = TypeVar("T")

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def to_plain(value: Any) -> Any:
    """JSON values of a dataclass; fields that hold their default are left out."""
    if is_dataclass(value):
        return {
            f.name: to_plain(getattr(value, f.name))
            for f in fields(value)
            if f.compare and getattr(value, f.name) != _default(f)
        }
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(cls: type[T], data: object, where: str) -> T:
    """`data` as a `cls`. Raises ValueError naming the place (from `where` on), the value and what is allowed."""
    kinds = _types(cast(Any, cls))
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_short(data)}; allowed is an object with {', '.join(kinds)}")
    known = {f.name: f for f in fields(cast(Any, cls)) if f.compare}
    for name in data:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (nearest: {near[0]!r})" if near else ""
            raise ValueError(f"{where} has an unknown key {name!r}{hint}; allowed are {', '.join(known)}")
    for name, f in known.items():
        if name not in data and _default(f) is MISSING:
            raise ValueError(f"{where} lacks {name!r}")
    values = {name: _value(kinds[name], item, f"{where}.{name}") for name, item in data.items()}
    return cls(**values)


@lru_cache(maxsize=64)
def _types(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.compare}


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _value(kind: Any, data: object, where: str) -> Any:
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is types.UnionType:
        return None if data is None else _value(arguments[0], data, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(data, list):
            raise ValueError(f"{where} is {_short(data)}; allowed is a list")
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if is_dataclass(kind):
        return from_plain(cast(Any, kind), data, where)
    if kind is float and type(data) is int:
        return float(data)
    # type(), not isinstance(): true is no whole number here.
    if type(data) is not kind:
        raise ValueError(f"{where} is {_short(data)}; allowed is {_WORDS[kind]}")
    return data


def _short(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
