"""Which devices this process takes tensors of beside the CPU, and from where: the driver's library and the kernels.

Nothing is opened here: that happens when a group is given the first tensor on a device.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parent / "kernels.fatbin"


@dataclass(frozen=True)
class Source:
    """type: as torch names the device. kernels: path of the fatbin, '' where there is none; missing: then why."""

    type: str = "cuda"
    driver: str = "libcuda.so.1"
    kernels: str = ""
    missing: str = ""
    blocks: int = 16
    """Of a kernel in spin mode, and `threads` of a block; guessed."""
    threads: int = 512
    warning: str = ""
    """Logged as WARN by rank 0 when a group takes its first tensor on such a device."""


_other: Source | None = None


def use(source: Source) -> None:
    """Takes these devices instead of CUDA's, from the first group of the process on: for tests without a GPU."""
    global _other
    _other = source


def start(extension: Any) -> None:
    """Tells the data plane; once, before the first group."""
    extension.take_devices(**asdict(_other or _cuda()))


def _cuda() -> Source:
    built: Any = importlib.import_module("ringcomm._build_info")  # written by setup.py

    return Source(
        kernels=str(KERNELS) if KERNELS.exists() else "",
        missing=built.CUDA_KERNELS_MISSING,
        warning="ringcomm's CUDA half has run over a fake driver only, never on a GPU: check what you get",
    )
