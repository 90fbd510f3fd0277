"""Builds ringcomm._C against the torch that is importable now; everything static is in pyproject.toml.

The build also writes ringcomm/_build_info.py, by which ringcomm/_load.py tells at run time whether this is that torch,
and, where there is an nvcc, ringcomm/kernels.fatbin (scripts/fatbin.py).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "scripts"))
import fatbin  # noqa: E402

COMPILES = {"bdist_wheel", "build", "build_ext", "develop", "dist_info", "editable_wheel", "install"}
FLAGS = ["-O3", "-std=c++20", "-Wall", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
# Python's own flags ask for debug information: 30 MB and a longer build. RINGCOMM_CXXFLAGS=-g brings it back.
FLAGS += ["-g0", *os.environ.get("RINGCOMM_CXXFLAGS", "").split()]


def refuse(sentence: str) -> NoReturn:
    raise SystemExit(f"\nringcomm: {sentence}\n")


def check_machine() -> None:
    if not sys.platform.startswith("linux"):
        refuse(f"works on Linux only (it needs memfd, futex and epoll); this is {sys.platform}.")
    if "CXX" not in os.environ and shutil.which("c++") is None:
        refuse("needs a C++20 compiler and found none; install g++ (Debian, Ubuntu: apt-get install g++) or set CXX.")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        refuse(f"needs Python's C headers, and {header} is missing (Debian, Ubuntu: apt-get install python3-dev).")


def import_torch() -> Any:
    try:
        import torch
        import torch.utils.cpp_extension
    except ImportError as error:
        refuse(
            "is compiled against the torch it will run on, and none can be imported in this build "
            f"({error}). In the virtual environment that holds torch, run: pip install --no-build-isolation ."
        )
    return torch


def sources() -> list[str]:
    """All .cpp files of the data plane, relative to the root as setuptools wants them, in a fixed order."""
    folders = ["core", "cuda", "connections", "engine", "device", "c10d"]
    files = [path for folder in folders for path in sorted((ROOT / "ringcomm_ext" / folder).glob("*.cpp"))]
    files.append(ROOT / "ringcomm_ext" / "bindings.cpp")
    return [str(path.relative_to(ROOT)) for path in files]


def extension(torch: Any) -> Any:
    paths = sorted(path for kind in ("*.h", "*.inc") for path in (ROOT / "ringcomm_ext").rglob(kind))
    headers = [str(path.relative_to(ROOT)) for path in paths]
    return torch.utils.cpp_extension.CppExtension(
        "ringcomm._C",
        sources(),
        include_dirs=[str(ROOT / "ringcomm_ext")],
        depends=headers,
        extra_compile_args={"cxx": FLAGS},
        extra_link_args=["-pthread", "-ldl"],
    )


def build_info(torch: Any, version: str, kernels: fatbin.Kernels) -> str:
    """The text of ringcomm/_build_info.py. No date and no path: equal inputs give equal wheels."""
    values = {
        "RINGCOMM_VERSION": version,
        "TORCH_VERSION": str(torch.__version__),
        "TORCH_GIT_VERSION": str(torch.version.git_version),
        "CXX11_ABI": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "PYTHON_TAG": f"cp{sys.version_info.major}{sys.version_info.minor}",
        "CUDA_KERNELS": kernels.targets,
        "CUDA_KERNELS_MISSING": kernels.missing,
    }
    lines = [f"{name} = {value if isinstance(value, bool) else json.dumps(value)}" for name, value in values.items()]
    return "\n".join(['"""Written by setup.py: what ringcomm._C was compiled against."""', "", *lines, ""])


def build_extension_class(torch: Any) -> Any:
    class BuildExtension(torch.utils.cpp_extension.BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # In the checkout also for editable builds, whose own folder is thrown away, so that only what changed is
            # compiled again; by version, because objects of one torch must not be linked into another's extension.
            self.build_temp = str(ROOT / "build" / f"objects-{sys.implementation.cache_tag}-torch{torch.__version__}")

        def run(self) -> None:
            super().run()
            try:
                kernels = fatbin.build(ROOT / "build")
            except fatbin.WrongTargets as error:
                refuse(f"{error}.")
            if kernels.missing:
                print(f"ringcomm: no CUDA kernels: {kernels.missing}")
            text = build_info(torch, self.distribution.get_version(), kernels)
            folders = [Path(self.build_lib, "ringcomm")]
            if self.inplace:
                folders.append(ROOT / "ringcomm")
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "_build_info.py").write_text(text)
                (folder / fatbin.NAME).unlink(missing_ok=True)
                if kernels.file is not None:
                    shutil.copyfile(kernels.file, folder / fatbin.NAME)

    return BuildExtension


class BuildPython(build_py):
    """Also puts the shipped policies inside the package; an editable install finds them beside it."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        target = Path(self.build_lib, "ringcomm", "configs")
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted((ROOT / "configs").glob("*.yaml")):
            shutil.copyfile(path, target / path.name)


def torch_requirement(torch: Any) -> str:
    """A wheel fits one minor version of torch: the layout of c10d::Backend changes between them."""
    if torch is None:
        return "torch>=2.13,<2.15"
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if not (2, 13) <= (major, minor) < (2, 15):
        print(f"ringcomm: warning: torch {torch.__version__} is not among the tested versions 2.13 and 2.14")
    return f"torch>={major}.{minor},<{major}.{minor + 1}"


def main() -> None:
    torch = None
    options: dict[str, Any] = {"cmdclass": {"build_py": BuildPython}}
    if COMPILES & set(sys.argv[1:]):
        check_machine()
        torch = import_torch()
        options["ext_modules"] = [extension(torch)]
        options["cmdclass"]["build_ext"] = build_extension_class(torch)
    packages = [
        "ringcomm",
        *(f"ringcomm.{path.name}" for path in sorted(ROOT.glob("ringcomm/[a-z]*")) if path.is_dir()),
    ]
    setup(
        packages=packages,
        package_data={"ringcomm": ["*.pyi", "py.typed"]},
        install_requires=[torch_requirement(torch), "numpy>=1.26", "pyyaml>=6"],
        **options,
    )


main()
