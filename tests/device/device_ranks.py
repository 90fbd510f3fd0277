"""Ranks whose tensors are on the test device: after `start()` in a rank it is a device of torch's like any other."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

DEVICE = "fakegpu"
BOTH = f"cpu:ringcomm,{DEVICE}:ringcomm"
"""The backend of a group with tensors on either."""
_FILE = "RINGCOMM_TEST_DEVICE"
_DRIVER = "RINGCOMM_TEST_DEVICE_DRIVER"

native: Any = None
"""The extension, once started."""


def environment(extension: Path, driver: Path) -> dict[str, str | None]:
    """What ranks need to find the built device; a misuse of the driver ends them."""
    return {_FILE: str(extension), _DRIVER: str(driver), "FAKE_CUDA_ABORT": "1"}


def start(rank: int, own_device: bool = False, **source: Any) -> torch.device:
    """Makes the test device known, to ringcomm too, and gives this rank's: one for all ranks, or each its own.

    source: what `ringcomm.devices.Source` is to have instead of what is there.
    """
    global native
    import ringcomm  # noqa: F401 - makes the name known where the package is not installed
    from ringcomm import devices

    if native is None:
        path = os.environ[_FILE]
        loader = importlib.machinery.ExtensionFileLoader("ringcomm_test_device", path)
        spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
        assert spec is not None
        native = importlib.util.module_from_spec(spec)
        loader.exec_module(native)
        native.machine(8 if own_device else 1)
        torch.utils.rename_privateuse1_backend(DEVICE)
        torch._register_device_module(DEVICE, _module())  # type: ignore[attr-defined]
        torch.utils.generate_methods_for_privateuse1_backend()
        with tempfile.NamedTemporaryFile(prefix="image", delete=False) as image:
            image.write(native.image())
        there = {"driver": os.environ[_DRIVER], "kernels": image.name, **source}
        devices.use(devices.Source(type="privateuseone", blocks=2, threads=2, **there))
    index = rank if own_device else 0
    native.set_device(index)
    return torch.device(DEVICE, index)


def init(rank: int, own_device: bool = False, backend: str = BOTH, **kwargs: Any) -> torch.device:
    """`start()`, and the default group with tensors of the CPU and of the device."""
    device = start(rank, own_device)
    dist.init_process_group(backend, **kwargs)
    return device


def _module() -> ModuleType:
    """What torch looks for in `torch.fakegpu`."""
    module = ModuleType(f"torch.{DEVICE}")

    @contextlib.contextmanager
    def stream(other: torch.Stream | None) -> Iterator[None]:
        if other is None:
            yield
        else:
            with other:
                yield

    def index(device: Any) -> int:
        return device if isinstance(device, int) else torch.device(device).index or 0

    def make_stream(device: Any = None, priority: int = 0) -> torch.Stream:
        return torch.Stream(device=torch.device(DEVICE, native.current_device()), priority=priority)

    def current_stream(device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device)

    members = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
        "device_count": native.device_count,
        "current_device": native.current_device,
        "set_device": lambda device: native.set_device(index(device)),
        "Stream": make_stream,
        "Event": lambda **kwargs: torch.Event(device=torch.device(DEVICE, native.current_device())),
        "stream": stream,
        "current_stream": current_stream,
        "synchronize": lambda device=None: torch.accelerator.synchronize(device),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, member in members.items():
        setattr(module, name, member)
    sys.modules[module.__name__] = module
    return module
