"""Makes the name "ringcomm" known to torch.distributed; called by torch itself at the end of `import torch`.

An exception here would break `import torch` for every program of the environment, so nothing is read or loaded before
a process group asks for it (but one environment variable, see `ringcomm.replace`), and whatever fails becomes one
warning. The module stands alone so that torch's call works also while `import ringcomm` is what imports torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Backend, ProcessGroup

NAME = "ringcomm"
# A list: torch <= 2.13 takes a string apart into letters. "cuda" follows when that half has run on a GPU; until then
# cuda:ringcomm asks for it.
DEVICES = ["cpu"]

_warned = False


def register() -> None:
    """Registers the backend once; never raises. Without torch.distributed (a torch built without it) does nothing."""
    try:
        # May come back here by torch's autoload before it returns; hence the look at torch's own list, not at a flag.
        import torch.distributed as dist

        if dist.is_available() and NAME not in dist.Backend.backend_list:
            dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
            if "RINGCOMM_REPLACE" in os.environ:
                _replace()
    except Exception as error:  # see the module's text
        _warn(f"ringcomm could not be registered with torch.distributed: {type(error).__name__}: {error}")


def _replace() -> None:
    try:
        replace = importlib.import_module("ringcomm.replace")
        if replace.wish(os.environ):
            replace.install()
    except ValueError as error:
        _warn(f"ringcomm: {error}")


def _create(options: Any, backend_options: Any) -> Backend | ProcessGroup:
    """What torch calls when a group is made: `_DistributedBackendOptions` and the user's `pg_options` or None."""
    from ringcomm import backend

    return backend.create(options, backend_options)


def _warn(text: str) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except Warning:  # python -W error: the text is still worth seeing, `import torch` must still work
        print(text, file=sys.stderr)
