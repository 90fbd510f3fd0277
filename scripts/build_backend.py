"""The PEP 517 backend: setuptools, plus the answer to "which torch is the extension compiled against?".

The extension must be compiled against the torch it will run on. An isolated build hides the environment's packages,
so pip would fetch another torch for the build. With pip, the isolated build still runs the environment's own
interpreter: where that environment has a torch, this backend makes it visible again. Where there is none, a build
dependency on the tested version is returned, and setup.py lets the wheel require the same minor version.
"""

from __future__ import annotations

import importlib.util
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks we leave as they are

TESTED_TORCH = "torch==2.13.*"


def torch_folder() -> str | None:
    """The site-packages folder that holds the environment's torch but is hidden from this process, if there is one."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    return next((path for path in paths if path not in sys.path and Path(path, "torch", "version.py").exists()), None)


def show_torch() -> bool:
    """Makes torch importable if the environment has it; appended last, so the isolated build tools still win."""
    if importlib.util.find_spec("torch") is not None:
        return True
    folder = torch_folder()
    if folder is None:
        return False
    sys.path.append(folder)
    return importlib.util.find_spec("torch") is not None


def _requires(config_settings: dict[str, Any] | None, found: list[str]) -> list[str]:
    return found if show_torch() else [*found, TESTED_TORCH]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _requires(config_settings, build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _requires(config_settings, build_meta.get_requires_for_build_editable(config_settings))


def prepare_metadata_for_build_wheel(folder: str, config_settings: dict[str, Any] | None = None) -> str:
    show_torch()
    return build_meta.prepare_metadata_for_build_wheel(folder, config_settings)


def prepare_metadata_for_build_editable(folder: str, config_settings: dict[str, Any] | None = None) -> str:
    show_torch()
    return build_meta.prepare_metadata_for_build_editable(folder, config_settings)


def build_wheel(folder: str, config_settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    show_torch()
    return build_meta.build_wheel(folder, config_settings, metadata)


def build_editable(folder: str, config_settings: dict[str, Any] | None = None, metadata: str | None = None) -> str:
    show_torch()
    return build_meta.build_editable(folder, config_settings, metadata)
