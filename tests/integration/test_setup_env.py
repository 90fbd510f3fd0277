"""What the README's commands say, before they make anything, where the machine lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup_env.sh"


def check(function: str, folder: Path, **env: str) -> tuple[int, str]:
    command = ["bash", "-c", f'set -eu; . "{SETUP}"; {function}']
    done = subprocess.run(
        command, env={**os.environ, **env}, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def python_that_says(version: str, folder: Path) -> Path:
    """A Python of this version, as far as the check goes: it answers what is asked of `sys.version_info`."""
    file = folder / "python3"
    major, minor = version.split(".")
    file.write_text(
        f"""#!/bin/sh
[ "$1" = --version ] && echo "Python {version}.0" && exit 0
[ "$1" = -c ] && exec "{sys.executable}" -c "import sys; sys.version_info = ({major}, {minor}); $2"
exit 1
"""
    )
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(("version", "good"), [("3.9", False), ("3.10", True), ("3.13", True), ("3.14", False)])
def test_python_of_another_version(version: str, good: bool, tmp_path: Path) -> None:
    status, text = check("check_python", tmp_path, PYTHON=str(python_that_says(version, tmp_path)))
    if good:
        assert (status, text) == (0, "")
    else:
        assert status == 1 and f"is Python {version}.0" in text and "3.10 to 3.13" in text, text


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    status, text = check("check_python", tmp_path, PYTHON=str(tmp_path / "none"))
    assert status == 1 and f"There is no {tmp_path / 'none'} here. Install Python" in text
    status, text = check("check_compiler", tmp_path, CXX=str(tmp_path / "none"))
    assert status == 1 and "There is no C++ compiler" in text and "apt-get install g++" in text
    status, text = check("check_compiler", tmp_path, CXX="false")
    assert status == 1 and "does not know C++20" in text
