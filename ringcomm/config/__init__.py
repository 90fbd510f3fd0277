"""The configuration of a group: its keys, where it comes from, what is refused. The keys are fields of dataclasses.

Where settings come from, first found: `pg_options` (`Options(...)`, a path, a shipped name or a dict), the environment
variable RINGCOMM_CONFIG (a path or a shipped name), the shipped `default`. Then single keys from their own environment
variables. No file in the current or home directory is ever looked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringcomm.config.rule import CHOSEN, COLLECTIVES, PolicyRule
from ringcomm.config.schema import SECTIONS, Config, dotted
from ringcomm.config.shipped import shipped_names

__all__ = [
    "CHOSEN",
    "COLLECTIVES",
    "SECTIONS",
    "Config",
    "Options",
    "PolicyRule",
    "dotted",
    "load",
    "shipped_names",
]


@dataclass(frozen=True)
class Options:
    """`pg_options=ringcomm.Options(config=...)`: a path, the name of a shipped configuration, or a dict."""

    config: str | os.PathLike[str] | Mapping[str, Any] | None = None


def load(options: object = None, environ: Mapping[str, str] | None = None, *, source: str = "pg_options") -> Config:
    """The configuration for a group.

    options: what the user passed as `pg_options` (see the module text), or None. environ: os.environ unless given.
    source: what errors and the log call `options`.
    Raises ConfigError naming key, value, what is allowed and the place.
    """
    from ringcomm.config.loading import load as load_

    return load_(options, os.environ if environ is None else environ, source)
