"""Loads the compiled extension, or says in one sentence why it cannot be and what to do.

A C++ extension of torch works with the minor version it was compiled against; on another one the loader fails with
an undefined symbol, or worse, succeeds. So the versions are compared before anything is loaded.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps"


def extension() -> ModuleType:
    """Returns ringcomm._C. Raises ImportError with the reason and the command that mends it; nothing else escapes."""
    loaded = sys.modules.get("ringcomm._C")
    if loaded is not None:
        return loaded
    reason = mismatch()
    if reason is not None:
        raise ImportError(reason)
    try:
        return importlib.import_module("ringcomm._C")
    except (ImportError, OSError) as error:
        raise ImportError(f"ringcomm's compiled extension cannot be loaded ({_one_line(error)}); {_advice()}") from None


def mismatch() -> str | None:
    """One sentence if the extension was not built, or not for this torch and Python; None if it fits."""
    folder = Path(__file__).resolve().parent
    # By file first: beside an editable install of another checkout, the import would find that one's.
    if not (folder / "_build_info.py").exists():
        return f"ringcomm in {folder} has no compiled extension: it was never built there; {_advice()}"
    try:
        info = importlib.import_module("ringcomm._build_info")
    except Exception as error:  # a damaged file may raise anything
        return f"{folder / '_build_info.py'} cannot be read ({_one_line(error)}); {_advice()}"
    import torch

    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    if here != info.PYTHON_TAG:
        return f"ringcomm in {folder} was built for Python {info.PYTHON_TAG}, and this is {here}; {_advice()}"
    if not _fits(info, torch):
        return f"ringcomm was built for torch {info.TORCH_VERSION}, and this is torch {torch.__version__}; {_advice()}"
    if not any(folder.glob("_C.*.so")):
        return f"ringcomm in {folder} has no compiled extension: its _C*.so is missing; {_advice()}"
    return None


def _fits(info: ModuleType, torch: ModuleType) -> bool:
    """CPU and CUDA builds of one release have the libraries we link; builds from a branch must be the very same."""
    built, running = str(info.TORCH_VERSION), str(torch.__version__)
    if _minor(built) != _minor(running) or bool(info.CXX11_ABI) != bool(torch._C._GLIBCXX_USE_CXX11_ABI):
        return False
    released = not any(
        mark in version.partition("+")[0] for version in (built, running) for mark in ("a", "b", "rc", "dev")
    )
    return released or torch.version.git_version == info.TORCH_GIT_VERSION


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _advice() -> str:
    root = Path(__file__).resolve().parent.parent
    source = str(root) if (root / "setup.py").exists() else "PATH-TO-RINGCOMM"
    return f"run: {REBUILD} {source}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
