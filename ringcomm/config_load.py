"""Finds the configuration, checks every key of it, and puts the environment's single keys on top."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringcomm.config import COLLECTIVES, SECTIONS, Config, Options, PolicyRule, setting_fields, shipped, shipped_names
from ringcomm.errors import ConfigError
from ringcomm.located import Located, from_python, read_yaml
from ringcomm.values import show_bytes

KNOWN_SCHEDULES = ("one_shot", "two_shot", "ring", "tree", "chain", "pairwise")
NO_BYTES = {
    "all_to_all": "with uneven splits no rank knows the others' bytes, so they could choose differently",
    "barrier": "it has no message",
}
_OTHER_VARIABLES = ("RINGCOMM_CONFIG",)
# Variables of the build and of the tests are not settings of a job.
_NOT_SETTINGS = re.compile(r"RINGCOMM_(BUILD|TEST)_")
_warned: set[str] = set()


@dataclass
class _Reading:
    """What is collected while one configuration is read."""

    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    schedule_names: tuple[str, ...] = KNOWN_SCHEDULES


def load(options: object, environ: Mapping[str, str]) -> Config:
    document, base, origin, asked, notes = _find(options, environ)
    reading = _Reading(notes=notes)
    top = _mapping(document, "the configuration", ("version", "schedules", "policy", *SECTIONS))
    schedules = _schedule_files(top.get("schedules"), base)
    reading.schedule_names = _schedule_names(schedules)
    version = 1
    if "version" in top:
        version = _parse("version", Config.__dataclass_fields__["version"], top["version"])
        reading.sources["version"] = top["version"].where
    policy = _policy(top.get("policy"), reading, inherited=not asked)
    if asked:
        policy = _default_policy() | policy
    environment = _environment(environ)
    sections = {name: _section(name, cls, top.get(name), environment, reading) for name, cls in SECTIONS.items()}
    config = Config(
        version=version,
        schedules=schedules,
        policy={c: policy[c] for c in COLLECTIVES if c in policy},
        origin=origin,
        sources=reading.sources,
        notes=tuple(reading.notes),
        **sections,
    )
    _check_exclusions(config)
    return config


def _find(options: object, environ: Mapping[str, str]) -> tuple[Located, Path | None, str, bool, list[str]]:
    """(document, folder its paths are relative to, text for the log, whether anybody asked for it, notes)."""
    wanted = options.config if isinstance(options, Options) else options
    variable = environ.get("RINGCOMM_CONFIG")
    if wanted is None:
        if not variable:
            path = shipped("default")
            if path is None:
                raise ConfigError(
                    "ringcomm: the shipped configuration default.yaml is missing: the installation is broken"
                )
            return read_yaml(path, "default.yaml"), path.parent, "shipped default (default.yaml)", False, []
        return (*_named(variable, "environment RINGCOMM_CONFIG"), True, [])
    notes = [f"pg_options stands over RINGCOMM_CONFIG={variable}, which is not read"] if variable else []
    if isinstance(wanted, Mapping):
        return from_python(wanted, "pg_options"), None, "pg_options (a dict)", True, notes
    if isinstance(wanted, (str, os.PathLike)):
        return (*_named(os.fspath(wanted), "pg_options"), True, notes)
    raise ConfigError(
        f"pg_options: {wanted!r} is not a configuration; allowed are ringcomm.Options(config=...), a path, "
        f"a shipped name ({', '.join(shipped_names())}) or a dict"
    )


def _named(name: str, source: str) -> tuple[Located, Path, str]:
    path = Path(name)
    if not path.is_file():
        found = shipped(name)
        if found is None:
            near = _nearest(name, shipped_names())
            raise ConfigError(
                f"{source}: no file {name!r}, and no shipped configuration of that name{near}; shipped are {', '.join(shipped_names())}"
            )
        return read_yaml(found, found.name), found.parent, f"shipped {found.stem} ({found.name}), from {source}"
    return read_yaml(path, name), path.parent, f"{path.absolute()}, from {source}"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f" (nearest: {near[0]!r})" if near else ""


def _mapping(item: Located | None, what: str, allowed: Iterable[str]) -> dict[str, Located]:
    """The entries of a mapping, refused where a key is not allowed."""
    if item is None or item.value is None:
        return {}
    if not isinstance(item.value, dict):
        raise ConfigError(f"{item.where}: {what} must be a mapping of keys to values, not {item.value!r}")
    allowed = list(allowed)
    for name, entry in item.value.items():
        if name not in allowed:
            near = _nearest(name, allowed)
            raise ConfigError(f"{entry.where}: unknown key {name!r} in {what}{near}; allowed are {', '.join(allowed)}")
    return item.value


def _items(item: Located | None, what: str) -> list[Located]:
    if item is None or item.value is None:
        return []
    if not isinstance(item.value, list):
        raise ConfigError(f"{item.where}: {what} must be a list, not {item.value!r}")
    return item.value


def _parse(dotted: str, field_: Any, item: Located) -> Any:
    kind = field_.metadata["kind"]
    try:
        return kind.parse(item.value)
    except ValueError:
        shown = item.value if isinstance(item.value, (str, int, float)) else type(item.value).__name__
        raise ConfigError(f"{item.where}: {dotted} is {shown!r}; allowed is {kind.allowed}") from None


def _section(name: str, cls: type, item: Located | None, environment: dict[str, Located], reading: _Reading) -> Any:
    known = {f.name: f for f in setting_fields(cls)}
    given = _mapping(item, name, known)
    values = {}
    for k, f in known.items():
        dotted, entry = f"{name}.{k}", given.get(k)
        if entry is not None:
            values[k] = _parse(dotted, f, entry)
            reading.sources[dotted] = entry.where
        if dotted in environment:
            values_before = values.get(k)
            values[k] = _parse(dotted, f, environment[dotted])
            over = f", over {f.metadata['kind'].show(values_before)} at {entry.where}" if entry is not None else ""
            reading.notes.append(
                f"{dotted} is {f.metadata['kind'].show(values[k])} by {environment[dotted].where}{over}"
            )
            reading.sources[dotted] = environment[dotted].where
    return cls(**values)


def variables() -> dict[str, str]:
    """Environment variable -> dotted key, for all that set a single key."""
    return {
        f.metadata["env"]: f"{name}.{f.name}"
        for name, cls in SECTIONS.items()
        for f in setting_fields(cls)
        if f.metadata["env"]
    }


def _environment(environ: Mapping[str, str]) -> dict[str, Located]:
    known = variables()
    for name in environ:
        if (
            name.startswith("RINGCOMM_")
            and name not in (*known, *_OTHER_VARIABLES)
            and not _NOT_SETTINGS.match(name)
            and name not in _warned
        ):
            _warned.add(name)
            near = _nearest(name, [*known, *_OTHER_VARIABLES])
            warnings.warn(
                f"ringcomm: environment variable {name} is not known and has no effect{near}",
                RuntimeWarning,
                stacklevel=5,
            )
    return {dotted: Located(environ[v], f"environment {v}") for v, dotted in known.items() if environ.get(v)}


def _schedule_files(item: Located | None, base: Path | None) -> tuple[str, ...]:
    found = []
    for entry in _items(item, "schedules"):
        if not isinstance(entry.value, str):
            raise ConfigError(f"{entry.where}: schedules is a list of paths of Python files, not {entry.value!r}")
        path = Path(entry.value)
        if base is None and not path.is_absolute():
            raise ConfigError(
                f"{entry.where}: {entry.value!r} must be an absolute path, since a dict lies in no folder"
            )
        path = (base or Path()) / path
        if not path.is_file():
            raise ConfigError(
                f"{entry.where}: schedules names {entry.value!r}, but there is no file {str(path.absolute())!r}"
            )
        found.append(str(path.absolute()))
    return tuple(found)


def _schedule_names(files: tuple[str, ...]) -> tuple[str, ...]:
    try:
        from ringcomm import schedules
    except ImportError:
        return KNOWN_SCHEDULES
    return tuple(getattr(schedules, "SCHEDULES", KNOWN_SCHEDULES))


def _default_policy() -> dict[str, tuple[PolicyRule, ...]]:
    path = shipped("default")
    assert path is not None
    document = read_yaml(path, "default.yaml")
    return _policy(document.value["policy"], _Reading(), inherited=True)


def _policy(item: Located | None, reading: _Reading, inherited: bool) -> dict[str, tuple[PolicyRule, ...]]:
    policy = {}
    for collective, rules in _mapping(item, "policy", COLLECTIVES).items():
        entries = _items(rules, f"policy.{collective}")
        if not entries:
            raise ConfigError(
                f"{rules.where}: policy.{collective} has no rule; leave the key out to use the shipped rules"
            )
        policy[collective] = tuple(_rule(collective, i, e, reading, inherited) for i, e in enumerate(entries))
    return policy


def _rule(collective: str, index: int, item: Located, reading: _Reading, inherited: bool) -> PolicyRule:
    known = {f.name: f for f in setting_fields(PolicyRule)}
    what = f"policy.{collective}[{index}]"
    given = _mapping(item, what, known)
    rule = PolicyRule(
        **{k: _parse(f"{what}.{k}", known[k], e) for k, e in given.items()}, where=item.where, inherited=inherited
    )
    if rule.schedule not in reading.schedule_names:
        at = given["schedule"].where if "schedule" in given else item.where
        has = f"schedule {rule.schedule!r} is not known" if rule.schedule else "schedule is missing"
        near = _nearest(rule.schedule, reading.schedule_names)
        raise ConfigError(f"{at}: {what}: {has}{near}; allowed are {', '.join(reading.schedule_names)}")
    if rule.max_bytes is not None and collective in NO_BYTES:
        raise ConfigError(
            f"{given['max_bytes'].where}: {what}.max_bytes is {rule.max_bytes}, but {collective} takes none: {NO_BYTES[collective]}"
        )
    if rule.ranks is not None and (rule.min_ranks is not None or rule.max_ranks is not None):
        raise ConfigError(
            f"{given['ranks'].where}: {what}.ranks excludes min_ranks and max_ranks; give one or the other"
        )
    if (rule.min_ranks or 1) > (rule.max_ranks or 65536):
        raise ConfigError(
            f"{item.where}: {what}.min_ranks is {rule.min_ranks}, above max_ranks {rule.max_ranks}; it could never match"
        )
    return rule


def _check_exclusions(config: Config) -> None:
    """Settings that exclude each other, whatever their sources; the text names both."""
    memory = config.memory
    if isinstance(memory.slot, int):
        where = config.sources["memory.slot"]
        if memory.slots * memory.slot > memory.limit:
            raise ConfigError(
                f"memory.slot is {show_bytes(memory.slot)} ({where}): {memory.slots} slots of it exceed memory.limit "
                f"{show_bytes(memory.limit)} ({config.sources.get('memory.limit', 'built-in default')})"
            )
        for collective, rules in config.policy.items():
            for i, rule in enumerate(rules):
                if rule.slot is not None and rule.slot > memory.slot and not rule.inherited:
                    raise ConfigError(
                        f"policy.{collective}[{i}].slot is {show_bytes(rule.slot)} ({rule.where}), but memory.slot is "
                        f"{show_bytes(memory.slot)} ({where}): a slot cannot be filled beyond its capacity; change one of the two"
                    )
