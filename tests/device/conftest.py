"""The test device, built once for all tests of this folder."""

from __future__ import annotations

import pytest

import device_build
import device_ranks


@pytest.fixture(scope="session")
def device_env() -> dict[str, str | None]:
    """The environment of ranks that use it."""
    return device_ranks.environment(device_build.build(), device_build.library())
