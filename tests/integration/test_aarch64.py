"""The core builds for aarch64 and keeps its promises there: all native tests, cross-built and run by an emulator."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from native import NOT_EMULATED

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "native.py"
NEEDS = ("aarch64-linux-gnu-g++", "qemu-aarch64")
MISSING = [command for command in NEEDS if shutil.which(command) is None]
EM_AARCH64 = 183


def native(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "aarch64"]
    return subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)


def machine(binary: Path) -> int:
    """The processor an ELF file is for."""
    return int(struct.unpack_from("<H", binary.read_bytes()[:20], 18)[0])


def test_without_the_tools_it_says_what_is_missing(tmp_path: Path) -> None:
    done = native(str(tmp_path))
    assert done.returncode == 1
    assert all(command in done.stderr for command in NEEDS), done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(MISSING), reason=f"cross-building needs {' and '.join(MISSING)}; see tests/README.md")
def test_every_native_test_passes_on_aarch64() -> None:
    all_names = (path.stem for path in (ROOT / "tests" / "native").glob("*_test.cpp"))
    names = sorted(name for name in all_names if name not in NOT_EMULATED)
    done = native(os.environ["PATH"])
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line.split()[1] for line in done.stdout.splitlines() if line.split()[:1] == ["ok"]]
    assert passed == names
    # Not this machine's own binaries under another name.
    assert {machine(ROOT / "build" / "native" / "aarch64" / name) for name in names} == {EM_AARCH64}
