"""The secret by which the processes of one job know each other's sockets: from a file, or random through the store."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringcomm.config import Config
from ringcomm.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import Store

LEAST_BYTES = 16
_NAME = "ringcomm/job key"


def of_job(settings: Config, store: Store) -> bytes:
    """Raises ConfigError where the file that was named cannot be read or holds too little."""
    return _of_file(settings) if settings.tcp.key_file is not None else _of_store(store)


def id_of(key: bytes) -> str:
    """Short text by which ranks see whether they have the same key; tells nothing of a key nobody can guess."""
    return hashlib.sha256(b"ringcomm job key\0" + key).hexdigest()[:12]


def _of_file(settings: Config) -> bytes:
    file, where = settings.tcp.key_file, settings.sources.get("tcp.key_file", "")
    assert file is not None
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{where}: tcp.key_file is {file!r}, which cannot be read: {error.strerror}") from None
    if len(key) < LEAST_BYTES:
        raise ConfigError(f"{where}: tcp.key_file is {file!r} with {len(key)} bytes; at least {LEAST_BYTES} are needed")
    return key


def _of_store(store: Any) -> bytes:
    """The first to come writes it; all groups of a job see the same one below the prefixes that torch puts on top."""
    from torch.distributed import PrefixStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    text: bytes = store.compare_set(_NAME, "", secrets.token_hex(32))
    return bytes.fromhex(text.decode())
