"""The contract of the verbs connections over real devices: the native tests, built here, run on a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import native
from lab_nodes import run
from rdma_lab import RdmaLab

PROGRAMS = ["connection_test", "verbs_test"]
LIMIT = 400.0


@pytest.fixture(scope="module")
def built() -> Iterator[dict[str, Path]]:
    todo = [p for p in native.programs(["plain"], None) if p.name in PROGRAMS]
    assert sorted(p.name for p in todo) == PROGRAMS
    assert native.build(todo)
    yield {p.name: p.binary for p in todo}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_native_test_passes_over_the_devices(rdma_lab: RdmaLab, built: dict[str, Path], name: str) -> None:
    devices = ",".join(rdma_lab.device(node) for node in range(2))
    env = {"RINGCOMM_TEST_VERBS_DEVICE": devices, "RINGCOMM_TEST_VERBS_GID": str(rdma_lab.gid(0))}
    run(rdma_lab, 0, str(built[name]), timeout=LIMIT, env=env)
