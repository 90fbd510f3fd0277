"""What this process called last, in the format that torch's analyser reads (docs/hangs.md, "Read the flight record").

    ringcomm.flight_record.dump("/tmp/fr_")       # writes /tmp/fr_<rank in the job>, returns what it wrote

The record itself is kept by the data plane; sizes and files are asked for by variables that torch knows.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcomm.errors import ConfigError

if TYPE_CHECKING:
    from ringcomm.config import Config

SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_SIZE = 2000
"""Torch's own default: entries per process, for collectives, and as many for messages."""
_MOST = 1 << 20  # 192 bytes each


def dump(prefix: str | os.PathLike[str] | None = None, *, messages: bool = False) -> dict[str, Any]:
    """The record as torch's dictionary: version, pg_config, pg_status, entries; besides, rank and messages.

    prefix: also writes it, pickled, to this prefix followed by the rank in the job. messages: sends and receives stand
    among the entries, in order of time; else in a list of their own, because torch's analyser takes every call for one
    of all ranks of its group, and stops at some mixtures. Any thread, any time. OSError where the file cannot be
    written; without a group, or with a size of 0, the lists are empty.
    """
    from ringcomm import _load

    extension = _load.extension()
    data: bytes = extension.flight_record(messages=messages)
    if prefix is not None:
        Path(f"{os.fspath(prefix)}{extension.flight_rank()}").write_bytes(data)
    found: dict[str, Any] = pickle.loads(data)
    return found


def capacity(environ: Mapping[str, str]) -> int:
    """Entries to keep, by torch's variables; 0: none. ConfigError for what is not a number from 0 to 1048576."""
    for name in SIZES:
        text = environ.get(name, "")
        if not text:
            continue
        if not text.isdecimal() or int(text) > _MOST:
            raise ConfigError(f"environment {name} is {text!r}; allowed is a whole number from 0 to {_MOST}")
        return int(text)
    return DEFAULT_SIZE


def prefix(settings: Config, environ: Mapping[str, str]) -> str:
    """Where a group that fails writes the record, without the rank; empty: nowhere. ConfigError without a folder."""
    asked = settings.debug.flight_record
    source = f"debug.flight_record ({settings.sources.get('debug.flight_record', 'configuration')})"
    for name in FILES:
        if not asked:
            asked, source = environ.get(name), f"environment {name}"
    if asked and not Path(asked).absolute().parent.is_dir():
        raise ConfigError(f"{source} is {asked!r}, but there is no folder {str(Path(asked).absolute().parent)!r}")
    return asked or ""
