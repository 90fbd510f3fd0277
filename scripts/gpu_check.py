"""Checks ringcomm's device code on a GPU, without torch: builds a small program and runs its steps, each bounded.

Called by scripts/gpu_check; see there. One JSON object comes out. A step that fails, is skipped or runs over its time
is not proven, and the exit status is 1. Over a fake driver (`--library`) the object says so: it proves no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fatbin

ROOT = Path(__file__).resolve().parent.parent
CHECK = ROOT / "tests" / "gpu"
CORE = ("log", "program", "random_bytes", "status", "types")
FLAGS = ["-std=c++20", "-O2", "-Wall", "-ffp-contract=off", "-pthread"]
INCLUDES = [f"-I{folder}" for folder in (ROOT / "ringcomm_ext", ROOT / "tests" / "native", CHECK)]
FAKE_DEVICE = "Fake GPU"
"""What tests/native/fake_cuda.cpp calls its devices."""


@dataclass(frozen=True)
class Step:
    """What runs as a process of its own, for so many seconds at most, once the steps it needs are proven."""

    name: str
    seconds: float
    needs: tuple[str, ...] = ("probe",)


STEPS = (
    Step("probe", 20, ()),
    Step("processes", 20),
    Step("spin results", 50),
    Step("memop results", 50),
    Step("process results", 50, ("probe", "processes")),
    Step("spin repeats", 45, ("spin results",)),
    Step("memop repeats", 45, ("memop results",)),
    Step("spin absent rank", 15, ("spin results",)),
    Step("memop absent rank", 15, ("memop results",)),
    Step("copy rate", 15),
    Step("spin speed", 30, ("spin results",)),
    Step("memop speed", 30, ("memop results",)),
)
"""385 s if each took all its time, plus the build."""


class BuildFailed(Exception):
    """The program or the kernels could not be built; the message says why."""


def sources() -> list[Path]:
    """All that the program is made of."""
    extension = ROOT / "ringcomm_ext"
    core = [extension / "core" / f"{name}.cpp" for name in CORE]
    return [*core, *sorted((extension / "cuda").glob("*.cpp")), *sorted(CHECK.glob("*.cpp"))]


def build(folder: Path) -> Path:
    """The program, compiled again where any source or header is newer. Raises BuildFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    headers = [path for top in ("ringcomm_ext", "tests") for path in (ROOT / top).rglob("*.h")]
    newest = max(path.stat().st_mtime for path in headers)
    cxx = os.environ.get("CXX", "c++").split()

    def compiled(source: Path) -> Path:
        target = folder / f"{source.parent.name}-{source.stem}.o"
        if not target.exists() or target.stat().st_mtime < max(newest, source.stat().st_mtime):
            _run([*cxx, *FLAGS, *INCLUDES, "-c", str(source), "-o", str(target)])
        return target

    jobs = int(os.environ.get("MAX_JOBS", len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compiled, sources()))
    program = folder / "gpu_check"
    if not program.exists() or any(path.stat().st_mtime > program.stat().st_mtime for path in objects):
        _run([*cxx, "-pthread", *map(str, objects), "-ldl", "-o", str(program)])
    return program


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as missing:
        raise BuildFailed(f"{command[0]}: {missing.strerror}") from None
    if done.returncode != 0:
        raise BuildFailed("\n".join(done.stdout.splitlines()[-20:]))


def kernels(given: str | None) -> Path:
    """The fatbin: `given`, or built now for $RINGCOMM_BUILD_CUDA_TARGETS, else sm_90. Raises BuildFailed."""
    if given is not None:
        return Path(given)
    os.environ.setdefault(fatbin.VARIABLE, "sm_90")
    try:
        made = fatbin.build(ROOT / "build")
    except fatbin.WrongTargets as wrong:
        raise BuildFailed(str(wrong)) from None
    if made.file is None:
        raise BuildFailed(made.missing)
    return made.file


def run_step(step: Step, program: Path, arguments: list[str]) -> dict[str, Any]:
    """Its figures and `proven`, or why it is not."""
    start = time.monotonic()
    # Ranks that are threads need a hardware queue each.
    environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    process = subprocess.Popen(
        [str(program), step.name, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    result: dict[str, Any] = {"step": step.name, "proven": False}
    try:
        output, _ = process.communicate(timeout=step.seconds)
        lines = output.splitlines() or [""]
        if process.returncode == 0:
            result.update(proven=True, figures=json.loads(lines[-1]))
        else:
            result["why"] = f"exit status {process.returncode}: " + " | ".join(lines[-3:])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its ranks too: they are processes of this session
        process.communicate()
        result["why"] = f"not done in {step.seconds:.0f} s"
    except json.JSONDecodeError:
        result["why"] = f"no JSON object at the end of its output: {lines[-1]}"
    result["seconds"] = round(time.monotonic() - start, 2)
    return result


def run_all(program: Path, arguments: list[str], wanted: list[str]) -> list[dict[str, Any]]:
    """All wanted steps in order; one that needs what is not proven is skipped, by name."""
    results: list[dict[str, Any]] = []
    proven: set[str] = set()
    for step in STEPS:
        if step.name not in wanted:
            results.append({"step": step.name, "proven": False, "why": "skipped: not asked for"})
        elif missing := [name for name in step.needs if name not in proven]:
            results.append({"step": step.name, "proven": False, "why": f"skipped: {', '.join(missing)} is not proven"})
        else:
            results.append(run_step(step, program, arguments))
        if results[-1]["proven"]:
            proven.add(step.name)
        verdict = "proven" if results[-1]["proven"] else "NOT PROVEN: " + results[-1]["why"]
        print(f"  {step.name}: {verdict}", file=sys.stderr, flush=True)
    return results


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole object. `fake` is None where no device was seen."""
    figures = {result["step"]: result["figures"] for result in results if result["proven"]}
    device = figures.get("probe", {}).get("device")
    whole: dict[str, Any] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": device,
        "fake": None if device is None else device == FAKE_DEVICE,
        "proven": all(result["proven"] for result in results),
        "steps": results,
    }
    copies, table = figures.get("copy rate"), figures.get("spin speed", {}).get("table", [])
    best = max((row.get("GB/s of memory", 0) for row in table if row["program"] == "two_shot"), default=0)
    if copies is not None and best:
        whole["best two_shot, percent of the copy rate"] = round(100 * best / copies["GB/s read and written"], 1)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="libcuda.so.1", help="the driver, as dlopen takes it")
    parser.add_argument("--kernels", help="a fatbin; default: built now")
    parser.add_argument("--only", action="append", choices=[step.name for step in STEPS], help="this step; repeatable")
    parser.add_argument("--ranks", type=int, default=4, choices=(2, 3, 4))
    parser.add_argument("--small", action="store_true", help="sizes for a fake driver")
    parser.add_argument("--output", type=Path, help="write the JSON object there too")
    args = parser.parse_args()
    if shutil.which("nvidia-cuda-mps-control") is not None:
        print("  (MPS is installed)", file=sys.stderr)
    try:
        program = build(ROOT / "build" / "gpu_check")
        arguments = [args.library, str(kernels(args.kernels)), str(args.ranks), *(["small"] if args.small else [])]
        results = run_all(program, arguments, args.only or [step.name for step in STEPS])
    except BuildFailed as why:
        print(f"gpu_check: not built: {why}", file=sys.stderr)
        results = [{"step": step.name, "proven": False, "why": "skipped: not built"} for step in STEPS]
    whole = summary(results)
    text = json.dumps(whole, indent=1)
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n")
    return 0 if whole["proven"] else 1


if __name__ == "__main__":
    sys.exit(main())
