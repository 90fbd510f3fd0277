"""Shared by all tests: the marks' meaning, and process pools per module (tests/README.md)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ranks import RankPool

# Two ranks already fill a small machine; OpenMP teams on top of them only add noise. Read when torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Whoever starts pytest in the background has Ctrl-C ignored, and every process started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def rank_pool() -> Iterator[Callable[..., RankPool]]:
    """`rank_pool(world, backend=None, env=None, **init_kwargs)`: the module's pool with these arguments, made once."""
    pools: dict[str, RankPool] = {}

    def get(
        world: int, backend: str | None = None, env: dict[str, str | None] | None = None, **kwargs: Any
    ) -> RankPool:
        key = repr((world, backend, sorted((env or {}).items()), sorted(kwargs.items())))
        if key not in pools:
            pools[key] = RankPool(world, backend, env, **kwargs)
        return pools[key]

    yield get
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="session")
def rdma_lab() -> Iterator[Any]:
    """Two nodes with RDMA devices, most likely in a guest, for the whole test run (tests/rdma/lab_nodes.py)."""
    from lab_nodes import lab

    with lab() as made:
        yield made


@pytest.fixture(scope="session")
def device_env() -> dict[str, str | None]:
    """The environment of ranks that use the test device (tests/device/device_ranks.py), which is built first."""
    import device_build
    import device_ranks

    return device_ranks.environment(device_build.build(), device_build.library())
