"""Replacing gloo from outside a program: the variable, `python -m ringcomm run`, and the children of either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GROUP = "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
SHOW = f"""
import json, sys
import torch.distributed as dist
if __name__ == "__main__":
    {GROUP}
    print(json.dumps([dist.get_backend(), sys.argv, sys.path[0], __spec__ and __spec__.name]))
    sys.exit(7)
"""
CHILDREN = f"""
import multiprocessing, subprocess, sys
import torch.distributed as dist

def child(kind):
    {GROUP}
    print(kind, dist.get_backend(), flush=True)

if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        process = multiprocessing.get_context(kind).Process(target=child, args=(kind,))
        process.start()
        process.join()
        assert process.exitcode == 0
    code = "import torch.distributed as dist; {GROUP}; print('exec', dist.get_backend())"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def python(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("RINGCOMM_", "TORCH_DEVICE_"))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env={**clean, **env}, capture_output=True, text=True, timeout=120)


def shown(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 7, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds sub/show.py, a script, and show_module.py, a module; both print what they see and exit with 7."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "show.py").write_text(SHOW)
    (tmp_path / "show_module.py").write_text(SHOW)
    return tmp_path


def test_run_a_script(folder: Path) -> None:
    """It sees what python would show it: its arguments, its folder on the path; its exit status is the command's."""
    done = python("-m", "ringcomm", "run", "sub/show.py", "--backend", "x", "-m", "-h", folder=folder)
    argv = ["sub/show.py", "--backend", "x", "-m", "-h"]
    assert shown(done) == ["ringcomm", argv, str(folder / "sub"), None]
    assert done.stderr.count("gloo is replaced: init_process_group('gloo') at sub/show.py:5 makes") == 1


def test_run_a_module(folder: Path) -> None:
    done = python("-m", "ringcomm", "run", "-m", "show_module", "--lr", "3", folder=folder)
    backend, argv, path, module = shown(done)
    assert (backend, argv[1:], path, module) == ("ringcomm", ["--lr", "3"], str(folder), "show_module")
    assert Path(argv[0]) == folder / "show_module.py"


def test_run_with_gloo_changes_nothing_and_stands_over_the_variable(folder: Path) -> None:
    done = python("-m", "ringcomm", "run", "--backend", "gloo", "sub/show.py", folder=folder, RINGCOMM_REPLACE="gloo")
    assert shown(done)[0] == "gloo"
    assert "replaced" not in done.stderr


def test_run_without_a_file_is_refused(folder: Path) -> None:
    done = python("-m", "ringcomm", "run", "show.py", folder=folder)
    assert (done.returncode, done.stderr) == (2, "ringcomm run: there is no file 'show.py'\n")
    done = python("-m", "ringcomm", "run", "sub", folder=folder)
    assert (done.returncode, done.stderr) == (2, "ringcomm run: there is no __main__.py in the folder 'sub'\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    for asked, missing in (
        ("nothing", "nothing"),
        ("nothing.at.all", "nothing.at.all"),
        ("package", "package.__main__"),
    ):
        done = python("-m", "ringcomm", "run", "-m", asked, folder=folder)
        assert (done.returncode, done.stderr) == (2, f"ringcomm run: there is no module {missing!r}\n")


def test_children_of_every_start_method_follow(folder: Path) -> None:
    (folder / "children.py").write_text(CHILDREN)
    done = python("-m", "ringcomm", "run", "children.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["fork ringcomm", "spawn ringcomm", "exec ringcomm"]


def test_nothing_is_replaced_or_loaded_unless_asked(folder: Path) -> None:
    loaded = "'ringcomm.replace' in sys.modules"
    code = f"import sys, torch.distributed as dist; {GROUP}; print(dist.get_backend(), {loaded})"
    assert python("-c", code, folder=folder).stdout.split() == ["gloo", "False"]


def test_without_the_entry_point_importing_ringcomm_reads_the_variable(folder: Path) -> None:
    code = f"import torch.distributed as dist, ringcomm; {GROUP}; print(dist.get_backend())"
    env = {"RINGCOMM_REPLACE": "gloo", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert python("-c", code, folder=folder, **env).stdout.split() == ["ringcomm"]


def test_run_without_the_entry_point_says_that_children_will_not_follow(folder: Path) -> None:
    done = python("-m", "ringcomm", "run", "sub/show.py", folder=folder, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert shown(done)[0] == "ringcomm"
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in done.stderr


@pytest.mark.parametrize("flags", [[], ["-W", "error"]], ids=["plain", "-W error"])
def test_a_wrong_value_is_one_warning_and_import_torch_works(flags: list[str], folder: Path) -> None:
    code = f"import torch.distributed as dist; {GROUP}; print(dist.get_backend())"
    done = python(*flags, "-c", code, folder=folder, RINGCOMM_REPLACE="glo")
    assert (done.returncode, done.stdout) == (0, "gloo\n"), done.stderr
    assert done.stderr.count("RINGCOMM_REPLACE is 'glo', so nothing is replaced; allowed are 'gloo'") == 1
