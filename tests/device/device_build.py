"""Builds the test device: a PrivateUse1 device of torch's over the fake CUDA driver (test_device.h)."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch.utils.cpp_extension

import native

HERE = Path(__file__).resolve().parent
NAME = "ringcomm_test_device"


def library() -> Path:
    """The fake driver's, as ringcomm opens it. Raises OSError where it cannot be built."""
    return native.fake_cuda_library("plain")


def build() -> Path:
    """The extension's file; both are made anew where a source has changed. Raises OSError where that fails."""
    driver = library()
    folder = native.ROOT / "build" / "native" / f"device-torch{torch.__version__}"
    target = folder / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = [*torch.utils.cpp_extension.include_paths(), sysconfig.get_path("include")]
    headers = " ".join(f"-isystem {path}" for path in includes)
    flags = f"  flags = -O1 -g0 -fPIC -DTORCH_EXTENSION_NAME={NAME} {headers}"
    compiler = f"  compiler = {native.MODES['plain'].cxx}"
    lines, objects = list(native.RULES), []
    for source in sorted(HERE.glob("*.cpp")):
        objects.append(str(folder / f"{source.stem}.o"))
        lines += [f"build {objects[-1]}: compile {source}", flags, compiler]
    libraries = torch.utils.cpp_extension.library_paths()[0]
    link = f"-shared -L{libraries} -Wl,-rpath,{libraries} -Wl,-rpath,{driver.parent} -Wl,--no-as-needed"
    torch_libraries = [f"{libraries}/lib{name}.so" for name in ("c10", "torch_cpu", "torch", "torch_python")]
    inputs = [*objects, str(driver), *torch_libraries]
    lines += [f"build {target}: link {' '.join(inputs)}", f"  flags = {link}", compiler]
    if not native.run_ninja("\n".join([*lines, ""]), "device.ninja"):
        raise OSError("the test device was not built")
    return target
