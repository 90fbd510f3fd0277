"""What makes a field of a dataclass a key of the configuration."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from ringcomm.config.values import Kind


def key(kind: Kind, default: Any, doc: str, *, env: str | None = None, agree: bool = False) -> Any:
    """A field that is a key: what it accepts, default, text, environment variable, whether all ranks must agree."""
    return field(default=default, metadata={"kind": kind, "doc": doc, "env": env, "agree": agree})


def setting_fields(section: Any) -> list[Any]:
    """The dataclass fields of a section (type or value) that are keys."""
    return [f for f in fields(section) if "kind" in f.metadata]
