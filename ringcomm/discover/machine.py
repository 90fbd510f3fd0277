"""All facts of this machine in one value, each from its own source, with the reason for every kind that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringcomm.discover import addresses, cores, gpus, host, interfaces, rdma, read
from ringcomm.topology.facts import Address, Machine, Missing


@dataclass(frozen=True)
class Sources:
    """Where facts come from; tests put their own in place."""

    root: Path = read.ROOT
    nvml: Callable[[], Any] | None = None
    """Gives the NVML module (None: `import pynvml`)."""
    verbs: Callable[[], Any] | None = None
    """Gives the module pyverbs.device (None: import it)."""
    addresses: Callable[[], Mapping[str, tuple[Address, ...]]] = addresses.addresses


def machine(sources: Sources | None = None) -> Machine:
    """What this process sees. Takes milliseconds, with NVML up to seconds: gather it once per process."""
    use = sources or Sources()
    found_gpus, no_gpus = gpus.gpus(use.root, use.nvml)
    devices, no_devices = rdma.devices(use.root)
    devices, no_verbs = rdma.with_verbs(devices, use.verbs)
    found_addresses, no_addresses = _addresses(use)
    reasons = {"GPUs": no_gpus, "RDMA devices": no_devices, "verbs": no_verbs, "addresses": no_addresses}
    return Machine(
        **host.identity(use.root),
        cores=cores.cores(use.root),
        gpus=found_gpus,
        rdma=devices,
        interfaces=interfaces.interfaces(found_addresses, use.root),
        missing=tuple(Missing(what, why) for what, why in reasons.items() if why),
    )


def _addresses(use: Sources) -> tuple[Mapping[str, tuple[Address, ...]], str]:
    try:
        return use.addresses(), ""
    except OSError as error:
        return {}, str(error)
