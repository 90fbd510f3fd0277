"""GPUs by NVML (the package nvidia-ml-py, found at run time), their place by sysfs. Initialises no CUDA."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringcomm.discover import pci, read
from ringcomm.topology.facts import Gpu, NvLinks


def gpus(root: Path = read.ROOT, load: Callable[[], Any] | None = None) -> tuple[tuple[Gpu, ...], str]:
    """(the GPUs, '') or ((), why not). load: gives the NVML module; it may raise ImportError."""
    try:
        nvml = load() if load else importlib.import_module("pynvml")
    except ImportError:
        return (), _without_library(root)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), f"NVML cannot be used: {error}"
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        found = tuple(_gpu(nvml, root, index, handle) for index, handle in enumerate(handles))
    except nvml.NVMLError as error:
        return (), f"NVML failed: {error}"
    finally:
        nvml.nvmlShutdown()
    return found, "" if found else "NVML finds none"


def _without_library(root: Path) -> str:
    shown = len(read.folders(root / "proc/driver/nvidia/gpus"))
    if not shown:
        return "no NVIDIA driver is loaded (or the container does not show it)"
    return f"the driver shows {shown}, but nvidia-ml-py is not installed: pip install nvidia-ml-py"


def _gpu(nvml: Any, root: Path, index: int, handle: Any) -> Gpu:
    return Gpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        pci=pci.by_bus(root, _bus(nvml.nvmlDeviceGetPciInfo(handle))),
        nvlinks=_nvlinks(nvml, handle),
    )


def _nvlinks(nvml: Any, handle: Any) -> tuple[NvLinks, ...]:
    ends: Counter[tuple[str, bool]] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        end = _other_end(nvml, handle, link)
        if end is not None:
            ends[end] += 1
    return tuple(NvLinks(peer, count, switch) for (peer, switch), count in sorted(ends.items()))


def _other_end(nvml: Any, handle: Any, link: int) -> tuple[str, bool] | None:
    """(bus number, whether it is an NVSwitch); None for a link that is off or that this GPU does not have."""
    try:
        if nvml.nvmlDeviceGetNvLinkState(handle, link) != nvml.NVML_FEATURE_ENABLED:
            return None
        bus = _bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    except nvml.NVMLError:
        return None
    try:
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except nvml.NVMLError:  # drivers before 470 cannot say; their switches answer like GPUs
        return bus, False
    return bus, kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH


def _bus(info: Any) -> str:
    return pci.normal_bus(_text(info.busId))


def _text(value: Any) -> str:
    """Older releases of nvidia-ml-py give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
