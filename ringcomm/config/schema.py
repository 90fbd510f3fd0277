"""The whole schema, and what all ranks must have alike of it. Reads no hardware, and no file that nobody named."""

# ruff: noqa: RUF009 - `key` makes a field, as dataclasses.field does.
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ringcomm.config.keys import key, setting_fields
from ringcomm.config.net import Tcp, Verbs
from ringcomm.config.rule import PolicyRule
from ringcomm.config.sections import Connections, Debug, Memory, Numerics, Progress, Shape
from ringcomm.config.values import Choice, Whole

if TYPE_CHECKING:
    from ringcomm.topology import Topology


SHIPPED_DEFAULT = "shipped default (default.yaml)"
"""The origin of a configuration that nobody asked for."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a group is made from, apart from what torch passes."""

    version: int = key(Whole(1, 1), 1, "Version of this schema.", agree=True)
    net: str = key(
        Choice(("auto", "tcp", "verbs")),
        "auto",
        "What goes between machines. auto: verbs (RDMA) where all ranks of a group can use it, else tcp; which, and "
        "why, is logged at INFO.",
        env="RINGCOMM_NET",
        agree=True,
    )
    schedules: tuple[str, ...] = field(
        default=(), metadata={"doc": "Files with your own schedules, relative to this file."}
    )
    policy: Mapping[str, tuple[PolicyRule, ...]] = field(default_factory=dict)
    progress: Progress = Progress()
    memory: Memory = Memory()
    connections: Connections = Connections()
    tcp: Tcp = Tcp()
    verbs: Verbs = Verbs()
    topology: Shape = Shape()
    numerics: Numerics = Numerics()
    debug: Debug = Debug()
    declared: Topology | None = None
    """What `topology.nodes` or `topology.file` holds."""
    origin: str = field(default="", compare=False)
    """What was read: a path, `shipped default`, or `pg_options`."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Dotted key -> place, for every value that is not a built-in default."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What stood over what; for the log of rank 0 at INFO, see `log_lines`."""

    def values(self) -> dict[str, str]:
        """Every single key (no policy) as text, by dotted name."""
        found = {}
        for section, part in (("", self), *((name, getattr(self, name)) for name in SECTIONS)):
            for f in setting_fields(part):
                value = getattr(part, f.name)
                found[dotted(section, f.name)] = "-" if value is None else f.metadata["kind"].show(value)
        return found

    def asked_for(self, name: str) -> bool:
        """Whether somebody gave the key of this dotted name: in what was named as configuration, or the environment."""
        source = self.sources.get(name, "")
        return bool(source) and (self.origin != SHIPPED_DEFAULT or source.startswith("environment "))

    def digest_parts(self) -> dict[str, str]:
        """What all ranks must have alike, by dotted key: the value where it is short, else a short sha of it."""
        shown = self.values()
        parts = {name: _short(shown[name]) for name in shown if _must_agree(name)}
        if self.topology.file is not None and self.declared is not None:
            parts["topology.file"] = f"{self.declared.describe()} ({self.declared.shape()})"
        parts |= {f"policy.{c}": _sha(*[rule.text() for rule in rules]) for c, rules in self.policy.items()}
        if self.schedules:
            parts["schedules"] = _sha(*[Path(path).read_text(encoding="utf-8") for path in self.schedules])
        return {name: parts[name] for name in sorted(parts)}

    def without_numerics(self) -> Config:
        """The same with the default `numerics`: what a job would do that asked for nothing special."""
        return replace(self, numerics=Numerics())

    def log_lines(self) -> list[str]:
        """For rank 0 at INFO: which configuration was read, and each setting that stood over another."""
        return [f"configuration: {self.origin}", *self.notes]

    def to_markdown(self) -> str:
        """The text of docs/configuration.md (the schema; it does not depend on this configuration's values)."""
        from ringcomm.config.docs import markdown

        return markdown()


SECTIONS = {
    "progress": Progress,
    "memory": Memory,
    "connections": Connections,
    "tcp": Tcp,
    "verbs": Verbs,
    "topology": Shape,
    "numerics": Numerics,
    "debug": Debug,
}


def dotted(section: str, name: str) -> str:
    """How a key is called; section '' holds those at the top."""
    return f"{section}.{name}" if section else name


def _must_agree(full: str) -> bool:
    section, _, name = full.rpartition(".")
    return any(f.name == name and f.metadata["agree"] for f in setting_fields(SECTIONS.get(section, Config)))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:40]}... ({_sha(text)})"


def _sha(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]
