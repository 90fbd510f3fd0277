"""ringcomm: a torch.distributed backend whose schedules are data.

`import torch` alone makes the backend known (an entry point); importing this package does the same and costs next to
nothing: neither numpy nor yaml is imported until a group is made.
"""

from __future__ import annotations

import importlib
from typing import Any

from ringcomm._register import register

__version__ = "0.1.0"

_HOMES = {
    "Options": "ringcomm.config",
    "Config": "ringcomm.config",
    "RingcommError": "ringcomm.errors",
    "ConfigError": "ringcomm.errors",
    "BootstrapError": "ringcomm.errors",
    "AgreementError": "ringcomm.errors",
    "ScheduleError": "ringcomm.errors",
    "monitored_barrier": "ringcomm.monitored",
    "all_gather_v": "ringcomm.uneven",
    "reduce_scatter_v": "ringcomm.uneven",
    "create_backend": "ringcomm.backend",
    "empty": "ringcomm.registered",
    "empty_like": "ringcomm.registered",
    "is_registered": "ringcomm.registered",
    "registered_bytes": "ringcomm.registered",
    "use_registered_memory": "ringcomm.registered",
}
_MODULES = ("flight_record",)

__all__ = ["__version__", *_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ringcomm.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ringcomm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})


register()
