"""The device code compiles where there is an nvcc, its PTX is as docs/cuda.md says; a build without nvcc says so.

None of this runs a kernel: it needs no GPU, and proves nothing about one.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fatbin

ROOT = Path(__file__).resolve().parents[2]
REDUCING = ("int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "boolean", "float8")
FAMILIES = ("bytes", *REDUCING)
COMBINE = tuple(f"combine_{family}" for family in REDUCING)
"""The short kernels of memop mode; the others interpret programs."""


@pytest.fixture(scope="module")
def ptx() -> str:
    """The PTX of all kernels; compiled once for one state of the sources, then read from build/."""
    try:
        fatbin.find_nvcc()
    except fatbin.NoKernels as reason:
        pytest.skip(str(reason))
    return fatbin.ptx(ROOT / "build").read_text()


def entries(ptx: str) -> dict[str, str]:
    """Text of each kernel by its name, from its head to the next function's."""
    found = re.split(r"\.(?:visible \.entry|func)\b", ptx)[1:]
    return {m[1]: text for text in found if (m := re.match(r"\s*ringcomm_(\w+)\(", text)) is not None}


def interpreters(ptx: str) -> dict[str, str]:
    """Those of the entries that wait and signal."""
    return {name: text for name, text in entries(ptx).items() if name not in COMBINE}


def test_there_is_an_interpreter_for_each_family_and_a_short_kernel_where_it_reduces(ptx: str) -> None:
    assert set(entries(ptx)) == {*FAMILIES, *COMBINE}


def test_signals_are_acquired_and_released_at_system_scope(ptx: str) -> None:
    for name, text in interpreters(ptx).items():
        assert text.count("ld.acquire.sys.u32") >= 3, name  # a head, a credit, a credit at the end
        assert text.count("st.release.sys.u32") >= 2, name  # a head, a credit
        assert "st.relaxed.sys.u64" in text, name  # low latency
    for weaker in (".acquire.gpu", ".release.gpu", ".acquire.cta", ".release.cta", "membar", "atom.", "red.global"):
        assert weaker not in ptx, weaker


def test_short_kernels_wait_for_nobody(ptx: str) -> None:
    """Their stream does; ranks that share a GPU must not spin on it."""
    for name in COMBINE:
        text = entries(ptx)[name]
        for waiting in (".acquire", ".release", ".relaxed", "bar.", "barrier.", "globaltimer"):
            assert waiting not in text, f"{name}: {waiting}"


def test_nothing_is_read_through_the_cache_for_constants(ptx: str) -> None:
    """A peer writes what is read: ld.global.nc may give what was there before."""
    assert ".nc" not in ptx
    assert "ldu." not in ptx


def test_data_moves_in_accesses_of_16_bytes(ptx: str) -> None:
    for name, text in interpreters(ptx).items():
        assert re.search(r"ld(\.\w+)*\.v(4\.[bu]32|2\.[bu]64)", text), name
        assert re.search(r"st(\.\w+)*\.v(4\.[bu]32|2\.[bu]64)", text), name


def test_roundings_are_those_of_the_host(ptx: str) -> None:
    """Nothing contracted, flushed or approximated."""
    for inexact in ("fma.", "mad.rn", ".ftz", ".approx", "div.full"):
        assert inexact not in ptx, inexact


def test_the_parameter_has_the_size_that_the_host_gives_it(ptx: str, tmp_path: Path) -> None:
    source = tmp_path / "size.cpp"
    source.write_text(
        '#include <cstdio>\n#include "cuda/combine_call.h"\n#include "cuda/kernel_call.h"\n'
        'template <class T> void say() { std::printf("%zu %zu ", sizeof(T), alignof(T)); }\n'
        "int main() { say<ringcomm::cuda::KernelCall>(), say<ringcomm::cuda::CombineCall>(); }\n"
    )
    binary = tmp_path / "size"
    command = ["c++", "-std=c++20", f"-I{ROOT / 'ringcomm_ext'}", str(source), "-o", str(binary)]
    subprocess.run(command, check=True, timeout=120)
    words = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()
    for name, text in entries(ptx).items():
        found = re.findall(r"\.param \.align (\d+) \.b8 ringcomm_\w+_param_0\[(\d+)\]", text)
        size, alignment = words[2:] if name in COMBINE else words[:2]
        assert found == [(alignment, size)], name


def test_the_build_says_what_it_has_or_why_not() -> None:
    info = importlib.import_module("ringcomm._build_info")
    assert info.__file__ is not None
    file = Path(info.__file__).with_name(fatbin.NAME)
    assert bool(info.CUDA_KERNELS) != bool(info.CUDA_KERNELS_MISSING)
    assert file.exists() == bool(info.CUDA_KERNELS)
    assert str(ROOT) not in info.CUDA_KERNELS_MISSING


def test_without_nvcc_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    kernels = fatbin.build(tmp_path)
    assert kernels.file is None
    assert kernels.missing == "no nvcc was found when ringcomm was built (CUDA_HOME, CUDA_PATH, PATH)"
    assert list(tmp_path.iterdir()) == []


def fake_nvcc(folder: Path, fails: bool = False) -> Path:
    """A command that knows two targets and copies its flags into the output, or complains."""
    script = folder / "bin" / "nvcc"
    script.parent.mkdir()
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
        "if sys.argv[1] == '--version': print('12.0')\n"
        "elif sys.argv[1] == '--list-gpu-code': print('sm_80\\nsm_90')\n"
        f"elif {fails}: print('kernels.cu(7): error: no such thing'); sys.exit(2)\n"
        "else: Path(sys.argv[sys.argv.index('-o') + 1]).write_text(' '.join(sys.argv))\n"
    )
    script.chmod(0o755)
    return folder


def test_targets_are_the_environments_or_what_this_nvcc_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_nvcc(tmp_path)))
    monkeypatch.delenv(fatbin.VARIABLE, raising=False)
    kernels = fatbin.build(tmp_path / "build")
    assert kernels.targets == "sm_80 sm_90 ptx"
    assert kernels.file is not None and "arch=compute_90,code=compute_90" in kernels.file.read_text()
    before = kernels.file.stat().st_mtime_ns
    again = fatbin.build(tmp_path / "build")
    assert again.file is not None and again.file.stat().st_mtime_ns == before, "compiled twice"
    monkeypatch.setenv(fatbin.VARIABLE, "sm_90")
    kernels = fatbin.build(tmp_path / "build")
    assert kernels.targets == "sm_90"
    assert kernels.file is not None and "compute_80" not in kernels.file.read_text()


def test_only_what_the_device_code_is_made_of_makes_it_compile_again() -> None:
    names = {str(path.relative_to(ROOT / "ringcomm_ext")) for path in fatbin.sources()}
    assert {"cuda/kernels.cu", "cuda/kernel.h", "cuda/combine.h", "cuda/device_context.h", "core/types.h"} <= names
    assert not {"cuda/layout.h", "cuda/kernels.h", "cuda/emulated_context.h"} & names


def test_none_is_a_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_nvcc(tmp_path)))
    monkeypatch.setenv(fatbin.VARIABLE, "none")
    kernels = fatbin.build(tmp_path / "build")
    assert (kernels.file, kernels.missing) == (None, "RINGCOMM_BUILD_CUDA_TARGETS=none when ringcomm was built")


@pytest.mark.parametrize(
    ("text", "said"),
    [("sm_12", "names 'sm_12'; this nvcc knows ptx, sm_80, sm_90, or none"), ("ptx", "name an sm_ target beside it")],
)
def test_other_targets_are_refused(text: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_nvcc(tmp_path)))
    monkeypatch.setenv(fatbin.VARIABLE, text)
    with pytest.raises(fatbin.WrongTargets, match=said):
        fatbin.build(tmp_path / "build")


def test_an_error_of_nvcc_is_no_error_of_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_nvcc(tmp_path, fails=True)))
    kernels = fatbin.build(tmp_path / "build")
    assert kernels.missing == "nvcc failed when ringcomm was built: kernels.cu(7): error: no such thing"
