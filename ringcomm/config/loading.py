"""Finds the configuration, checks every key of it, and puts the environment's single keys on top."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ringcomm.config import Options
from ringcomm.config.declared import declared
from ringcomm.config.keys import setting_fields
from ringcomm.config.located import Located, from_python, read_yaml
from ringcomm.config.reading import mapping, nearest, parse
from ringcomm.config.rule import COLLECTIVES
from ringcomm.config.rule_reading import default_policy, policy_rules, schedule_files
from ringcomm.config.schema import SECTIONS, SHIPPED_DEFAULT, Config, dotted
from ringcomm.config.shipped import shipped, shipped_names
from ringcomm.config.values import show_bytes
from ringcomm.errors import ConfigError

_OTHER_VARIABLES = ("RINGCOMM_CONFIG", "RINGCOMM_REPLACE")
# Variables of the build and of the tests are not settings of a job.
_NOT_SETTINGS = re.compile(r"RINGCOMM_(BUILD|TEST)_")
_warned: set[str] = set()


@dataclass
class _Reading:
    """What is collected while one configuration is read."""

    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# What was read last, by everything it depends on. A process makes many groups from one configuration, and a group must
# not take longer than its peers' sockets. The documents are kept with them, so that an id stands for one only.
_loaded: dict[tuple[object, ...], tuple[Located, Config]] = {}
_KEPT = 16


def load(options: object, environ: Mapping[str, str], source: str) -> Config:
    document, base, origin, asked, notes = _find(options, environ, source)
    ours = tuple((name, environ[name]) for name in sorted(environ) if name.startswith("RINGCOMM_"))
    key = (id(document), origin, ours)
    if key in _loaded:
        return _loaded[key][1]
    config = _build(document, base, origin, asked, notes, environ)
    while len(_loaded) >= _KEPT:
        _loaded.pop(next(iter(_loaded)))
    _loaded[key] = (document, config)
    return config


def _build(
    document: Located, base: Path | None, origin: str, asked: bool, notes: list[str], environ: Mapping[str, str]
) -> Config:
    reading = _Reading(notes=notes)
    known = {f.name: f for f in setting_fields(Config)}
    top = mapping(document, "the configuration", (*known, "schedules", "policy", *SECTIONS))
    schedules = schedule_files(top.get("schedules"), base)
    policy = policy_rules(top.get("policy"), inherited=not asked)
    if asked:
        policy = default_policy() | policy
    environment = _environment(environ)
    alone = _values("", known, top, environment, reading)
    sections = {name: _section(name, cls, top.get(name), environment, reading) for name, cls in SECTIONS.items()}
    config = Config(
        schedules=schedules,
        policy={c: policy[c] for c in COLLECTIVES if c in policy},
        declared=declared(sections["topology"], reading.sources, base),
        origin=origin,
        sources=reading.sources,
        notes=tuple(reading.notes),
        **alone,
        **sections,
    )
    _check_exclusions(config)
    return config


def _find(
    options: object, environ: Mapping[str, str], source: str
) -> tuple[Located, Path | None, str, bool, list[str]]:
    """(document, folder its paths are relative to, text for the log, whether anybody asked for it, notes)."""
    wanted = options.config if isinstance(options, Options) else options
    variable = environ.get("RINGCOMM_CONFIG")
    if wanted is None:
        if not variable:
            document, folder = _shipped_default()
            return document, folder, SHIPPED_DEFAULT, False, []
        return (*_named(variable, "environment RINGCOMM_CONFIG"), True, [])
    notes = [f"{source} stands over RINGCOMM_CONFIG={variable}, which is not read"] if variable else []
    if isinstance(wanted, Mapping):
        return from_python(wanted, source), None, f"{source} (a dict)", True, notes
    if isinstance(wanted, (str, os.PathLike)):
        return (*_named(os.fspath(wanted), source), True, notes)
    raise ConfigError(
        f"{source}: {wanted!r} is not a configuration; allowed are ringcomm.Options(config=...), a path, "
        f"a shipped name ({', '.join(shipped_names())}) or a dict"
    )


@lru_cache(maxsize=1)
def _shipped_default() -> tuple[Located, Path]:
    """Read once: unlike a user's file, an installed one does not change under a running process."""
    path = shipped("default")
    if path is None:
        raise ConfigError("ringcomm: the shipped configuration default.yaml is missing: the installation is broken")
    return read_yaml(path, "default.yaml"), path.parent


def _named(name: str, source: str) -> tuple[Located, Path, str]:
    path = Path(name)
    if not path.is_file():
        found = shipped(name)
        if found is None:
            near = nearest(name, shipped_names())
            raise ConfigError(
                f"{source}: no file {name!r}, and no shipped configuration of that name{near}; "
                f"shipped are {', '.join(shipped_names())}"
            )
        return read_yaml(found, found.name), found.parent, f"shipped {found.stem} ({found.name}), from {source}"
    return read_yaml(path, name), path.parent, f"{path.absolute()}, from {source}"


def _section(name: str, cls: type, item: Located | None, environment: dict[str, Located], reading: _Reading) -> Any:
    known = {f.name: f for f in setting_fields(cls)}
    return cls(**_values(name, known, mapping(item, name, known), environment, reading))


def _values(
    section: str,
    known: Mapping[str, Any],
    given: Mapping[str, Located],
    environment: dict[str, Located],
    reading: _Reading,
) -> dict[str, Any]:
    """What was given for the keys of a section: by the file, and over it by the environment."""
    values = {}
    for k, f in known.items():
        name, entry = dotted(section, k), given.get(k)
        if entry is not None:
            values[k] = parse(name, f, entry)
            reading.sources[name] = entry.where
        if name in environment:
            values_before = values.get(k)
            values[k] = parse(name, f, environment[name])
            over = f", over {f.metadata['kind'].show(values_before)} at {entry.where}" if entry is not None else ""
            reading.notes.append(f"{name} is {f.metadata['kind'].show(values[k])} by {environment[name].where}{over}")
            reading.sources[name] = environment[name].where
    return values


def variables() -> dict[str, str]:
    """Environment variable -> dotted key, for all that set a single key."""
    return {
        f.metadata["env"]: dotted(name, f.name)
        for name, cls in (("", Config), *SECTIONS.items())
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
            near = nearest(name, [*known, *_OTHER_VARIABLES])
            warnings.warn(
                f"ringcomm: environment variable {name} is not known and has no effect{near}",
                RuntimeWarning,
                stacklevel=5,
            )
    return {name: Located(environ[v], f"environment {v}") for v, name in known.items() if environ.get(v)}


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
                        f"{show_bytes(memory.slot)} ({where}): a slot cannot be filled beyond that; change either"
                    )
