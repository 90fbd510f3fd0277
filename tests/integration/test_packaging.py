"""Installing and importing: `import torch` alone knows the name, nothing of ours breaks it, errors are sentences."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KNOWN = "torch.distributed.Backend.backend_list"
GROUP = "import torch.distributed as d; d.init_process_group('ringcomm', store=d.HashStore(), rank=0, world_size=1)"
LOAD = "from ringcomm import _load; _load.extension()"


def python(code: str, *flags: str, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh interpreter outside the checkout; `path` is put before everything installed."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("RINGCOMM_", "TORCH_DEVICE_"))
    }
    environment.update(env)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120)


def output(code: str, *flags: str, path: Path | None = None, **env: str) -> str:
    """What it prints; it must end well and say nothing on stderr."""
    done = python(code, *flags, path=path, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package without its extension, to be damaged; returns the folder to put on the path."""
    spec = importlib.util.find_spec("ringcomm")
    assert spec is not None and spec.origin is not None
    skip = shutil.ignore_patterns("*.so", "_build_info.py", "__pycache__")
    shutil.copytree(Path(spec.origin).parent, tmp_path / "ringcomm", ignore=skip)
    shutil.copytree(ROOT / "configs", tmp_path / "ringcomm" / "configs", dirs_exist_ok=True)
    return tmp_path


def write_info(folder: Path, **changes: object) -> None:
    """A _build_info.py as this environment would write it, with `changes`."""
    import torch

    values: dict[str, object] = {
        "RINGCOMM_VERSION": "0.1.0",
        "TORCH_VERSION": str(torch.__version__),
        "TORCH_GIT_VERSION": torch.version.git_version,
        "CXX11_ABI": torch._C._GLIBCXX_USE_CXX11_ABI,
        "PYTHON_TAG": f"cp{sys.version_info.major}{sys.version_info.minor}",
        **changes,
    }
    text = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    (folder / "ringcomm" / "_build_info.py").write_text(text + "\n")


def refusal(code: str, path: Path) -> str:
    """The one line with which `code` fails; it must be an ImportError that says what to run."""
    done = python(code, path=path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: "), done.stderr
    assert "pip install --no-build-isolation" in last
    return last


@pytest.mark.parametrize("group", ["torch.backends", "torch.distributed.backends"])
def test_entry_points_are_installed(group: str) -> None:
    found = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=group)}
    assert found.get("ringcomm") == "ringcomm._register:register", "ringcomm is not installed in this environment"


def test_one_version() -> None:
    import ringcomm

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert ringcomm.__version__ == declared[1] == importlib.metadata.version("ringcomm")


def test_import_torch_alone_makes_the_name_known() -> None:
    assert "ringcomm" in output(f"import torch; print({KNOWN})")


def test_import_torch_loads_no_extension_and_reads_no_policy() -> None:
    heavy = ("ringcomm._C", "ringcomm.config", "ringcomm.backend", "yaml")
    assert output(f"import sys, torch; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_import_ringcomm_first_works() -> None:
    assert "ringcomm" in output(f"import ringcomm, torch; print({KNOWN})")


def test_without_autoload_import_ringcomm_makes_the_name_known() -> None:
    code = f"import torch; before = list({KNOWN}); import ringcomm; print('ringcomm' in before, 'ringcomm' in {KNOWN})"
    assert output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False True"


def test_without_autoload_torch_finds_the_name_where_it_has_a_group_of_entry_points_for_it() -> None:
    """torch.distributed.backends is asked by init_process_group, from 2.14 on."""
    import torch

    asks = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
    done = python(f"{GROUP}; print(d.get_backend())", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (done.stdout.strip() == "ringcomm") == asks, done.stderr


def test_registering_again_changes_nothing() -> None:
    code = f"import torch; from ringcomm._register import register; register(); print({KNOWN}.count('ringcomm'))"
    assert output(code, "-W", "error") == "1"


@pytest.mark.parametrize("text", [None, "version: [", "version: 1\nno_such_key: 3\n"])
def test_broken_config_does_not_break_import_torch(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    if text is not None:
        file.write_text(text)
    assert "ringcomm" in output(f"import torch; print({KNOWN})", RINGCOMM_CONFIG=str(file))


@pytest.mark.parametrize("flags", [[], ["-W", "error"]])
def test_a_failure_to_register_is_one_warning(flags: list[str]) -> None:
    code = (
        "import torch.distributed as d\n"
        "def refuse(*args, **kwargs): raise ValueError('no more names')\n"
        "d.Backend.register_backend = refuse\n"
        "import ringcomm, ringcomm._register\n"
        "ringcomm._register.register()\n"
        "print('still here')\n"
    )
    done = python(code, *flags, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "still here"
    assert done.stderr.count("could not be registered with torch.distributed: ValueError: no more names") == 1


@pytest.mark.parametrize("code", [LOAD, GROUP], ids=["load", "group"])
def test_another_torch_gets_a_sentence(code: str, copy: Path) -> None:
    write_info(copy, TORCH_VERSION="2.11.0")
    assert "ringcomm was built for torch 2.11.0, and this is torch 2." in refusal(code, copy)
    assert "ringcomm" in output(f"import torch; print({KNOWN})", path=copy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PYTHON_TAG": "cp39"}, "was built for Python cp39, and this is cp3"),
        ({"CXX11_ABI": None}, "was built for torch"),
        ({"TORCH_VERSION": "2.13.0a0+gitabc", "TORCH_GIT_VERSION": "abc"}, "was built for torch 2.13.0a0"),
        ({}, "its _C*.so is missing"),
    ],
)
def test_other_mismatches_get_a_sentence(changes: dict[str, object], said: str, copy: Path) -> None:
    write_info(copy, **changes)
    assert said in refusal(LOAD, copy)


def test_never_built_gets_a_sentence(copy: Path) -> None:
    assert "it was never built there" in refusal(LOAD, copy)


def test_a_loader_error_becomes_a_sentence(copy: Path) -> None:
    write_info(copy)
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (copy / "ringcomm" / f"_C{suffix}").write_text("not an ELF file")
    assert "compiled extension cannot be loaded (ImportError: " in refusal(LOAD, copy)


def test_build_without_torch_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('hidden for the test')\n")
    command = [sys.executable, "setup.py", "build_ext"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "pip install --no-build-isolation ." in done.stderr
    assert "Traceback" not in done.stderr


def test_an_isolated_build_sees_the_torch_of_its_environment() -> None:
    """Isolation takes the environment's folder off the path; the build back end puts it at the end."""
    code = (
        f"import sys, sysconfig; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import build_backend\n"
        "sys.path[:] = [p for p in sys.path if p != sysconfig.get_path('purelib')]\n"
        "print(build_backend.show_torch(), sys.path[-1] == sysconfig.get_path('purelib'))\n"
    )
    assert output(code) == "True True"


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_wheel_is_complete_and_loads_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
    skip = shutil.ignore_patterns(".git", ".venv", "build", "*.so", "*.egg-info", "_build_info.py", "__pycache__")
    shutil.copytree(ROOT, source, ignore=skip)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (wheel,) = tmp_path.glob("ringcomm-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"ringcomm/_build_info.py", "ringcomm/configs/default.yaml"} <= names
    assert sum(name.startswith("ringcomm/_C.") and name.endswith(".so") for name in names) == 1
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "ringcomm").rglob("*.py")}
    assert modules <= names, "Python files missing from the wheel"

    import torch

    major, minor = torch.__version__.split(".")[:2]
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert re.search(rf"^Requires-Dist: torch<{major}\.{int(minor) + 1},>={major}\.{minor}$", text, re.MULTILINE)

    target = tmp_path / "elsewhere"
    install = [*pip, "install", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    assert output(f"{LOAD}; print(_load.__file__)", path=target).startswith(str(target))
