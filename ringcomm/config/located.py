"""YAML text or a Python dict -> values that know their file and line. Knows no key of ringcomm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ringcomm.errors import ConfigError


@dataclass(frozen=True)
class Located:
    """A value and its place. `value` is a dict of str -> Located, a list of Located, or a scalar; nobody changes it."""

    value: object
    where: str
    """`file:line`, or for a dict `pg_options: policy.all_reduce[0]`."""


def bare(value: object) -> object:
    """The value as the user wrote it, without places."""
    if isinstance(value, Located):
        return bare(value.value)
    if isinstance(value, dict):
        return {key: bare(entry) for key, entry in value.items()}
    return [bare(entry) for entry in value] if isinstance(value, list) else value


def read_yaml(path: Path, shown: str) -> Located:
    """The one document of a file; `shown` is its name in places. Raises ConfigError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown}: cannot be read: {error}") from None
    return _parsed(text, shown)


@lru_cache(maxsize=64)
def _parsed(text: str, shown: str) -> Located:
    """Cached: every group of a process reads the configuration, and parsing takes longer than making the group."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Located({}, f"{shown}:1")
        return _from_node(node, loader, shown, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(
            f"{shown}:{mark.line + 1 if mark else 1}: not YAML: {error.problem or error.context}"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{shown}: not YAML: {error}") from None
    finally:
        loader.dispose()


def _from_node(node: Any, loader: Any, shown: str, above: tuple[int, ...]) -> Located:
    import yaml

    where = f"{shown}:{node.start_mark.line + 1}"
    if id(node) in above:
        raise ConfigError(f"{where}: an alias may not stand for a part it lies in")
    above = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Located] = {}
        for key_node, value_node in node.value:
            key, place = str(key_node.value), f"{shown}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{place}: a key must be a word")
            if key in result:
                raise ConfigError(f"{place}: key {key!r} is given twice (first at {result[key].where})")
            value = _from_node(value_node, loader, shown, above)
            # A block value may start lines below its key; the key's line is where a reader looks.
            result[key] = Located(value.value, place)
        return Located(result, where)
    if isinstance(node, yaml.SequenceNode):
        return Located([_from_node(child, loader, shown, above) for child in node.value], where)
    return Located(loader.construct_object(node), where)


def from_python(value: object, where: str, path: str = "") -> Located:
    """The same from nested dicts and lists, each place naming its dotted path."""
    place = f"{where}: {path}" if path else where
    if isinstance(value, Mapping):
        items = {str(k): from_python(v, where, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
        return Located(items, place)
    if isinstance(value, (list, tuple)):
        return Located([from_python(v, where, f"{path}[{i}]") for i, v in enumerate(value)], place)
    return Located(value, place)
