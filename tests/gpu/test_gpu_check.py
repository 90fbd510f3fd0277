"""scripts/gpu_check: what it makes of steps that fail, hang or say nothing, and the whole of it over the fake driver.

Nothing here has a GPU, and nothing here proves one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu_check
import native

IMAGE = bytes.fromhex("50ed55ba")  # what a fatbin begins with: all that the fake driver reads of one


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the built program: what each step does is in a file of its name."""
    script = tmp_path / "gpu_check"
    script.write_text(f"#!{sys.executable}\nimport sys\nexec(open('{tmp_path}/' + sys.argv[1]).read())\n")
    script.chmod(0o755)
    for step in gpu_check.STEPS:
        (tmp_path / step.name).write_text("print('words'); print('{\"calls\": 3}')")
    monkeypatch.setattr(gpu_check, "build", lambda folder: script)
    monkeypatch.setattr(gpu_check, "kernels", lambda given: Path("none"))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments])
    status = gpu_check.main()
    return status, json.loads(capsys.readouterr().out)


def why(result: Any) -> dict[str, str]:
    """Reason by step of all that is not proven."""
    return {step["step"]: step["why"] for step in result["steps"] if not step["proven"]}


def test_all_proven_is_success(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program / "probe").write_text('print(\'{"device": "NVIDIA H200"}\')')
    (program / "copy rate").write_text("print('{\"GB/s read and written\": 4000}')")
    rows = [{"program": "two_shot", "GB/s of memory": 2600}, {"program": "one_shot", "GB/s of memory": 3000}]
    (program / "spin speed").write_text(f"import json; print(json.dumps({{'table': {rows!r}}}))")
    file = program / "out.json"
    status, result = run(monkeypatch, capsys, "--output", str(file))
    assert (status, result["proven"], result["fake"], result["device"]) == (0, True, False, "NVIDIA H200")
    assert result["best two_shot, percent of the copy rate"] == 65.0
    assert json.loads(file.read_text()) == result
    assert why(result) == {}


def test_a_fake_driver_is_named(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program / "probe").write_text(f'print(\'{{"device": "{gpu_check.FAKE_DEVICE}"}}\')')
    status, result = run(monkeypatch, capsys)
    assert (status, result["fake"]) == (0, True)


def test_what_fails_is_not_proven_nor_what_needs_it(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program / "spin results").write_text("print('all is wrong'); sys.exit(3)")
    status, result = run(monkeypatch, capsys)
    assert status == 1 and not result["proven"]
    needing = ("spin repeats", "spin absent rank", "spin speed")
    assert why(result) == {
        "spin results": "exit status 3: all is wrong",
        **dict.fromkeys(needing, "skipped: spin results is not proven"),
    }


def test_what_hangs_is_ended_with_its_ranks(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = program / "pid"
    (program / "copy rate").write_text(
        f"import os, time\nchild = os.fork()\nif child: open('{pid}', 'w').write(str(child))\ntime.sleep(600)"
    )
    quick = tuple(
        gpu_check.Step(step.name, 3 if step.name == "copy rate" else 30, step.needs) for step in gpu_check.STEPS
    )
    monkeypatch.setattr(gpu_check, "STEPS", quick)
    status, result = run(monkeypatch, capsys)
    assert (status, why(result)) == (1, {"copy rate": "not done in 3 s"})
    stat = Path(f"/proc/{pid.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_step_that_says_nothing_or_is_left_out_is_not_proven(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program / "processes").write_text("print('fine')")
    status, result = run(monkeypatch, capsys, "--only", "probe", "--only", "processes")
    assert status == 1
    reasons = why(result)
    assert reasons.pop("processes") == "no JSON object at the end of its output: fine"
    assert set(reasons.values()) == {"skipped: not asked for"} and len(reasons) == len(gpu_check.STEPS) - 2


def test_without_a_program_all_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(folder: Path) -> Path:
        raise gpu_check.BuildFailed("no compiler")

    monkeypatch.setattr(gpu_check, "build", fails)
    status, result = run(monkeypatch, capsys)
    assert (status, result["device"], result["fake"]) == (1, None, None)
    assert set(why(result).values()) == {"skipped: not built"}


@pytest.mark.long
def test_over_the_fake_driver(tmp_path: Path) -> None:
    """The script as users call it: its program, built, and the fake driver as a library that ends at a misuse."""
    library = native.fake_cuda_library("plain")
    image = tmp_path / "kernels.fatbin"
    image.write_bytes(IMAGE)
    file = tmp_path / "result.json"
    command: list[str | Path] = [native.ROOT / "scripts" / "gpu_check", "--small"]
    command += ["--library", library, "--kernels", image]
    environment = {**os.environ, "PYTHON": sys.executable, "FAKE_CUDA_ABORT": "1"}
    done = subprocess.run([*command, "--output", file], env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert (result["fake"], result["proven"], why(result)) == (True, True, {})
    assert json.loads(done.stdout) == result
