#!/usr/bin/env python3
"""Builds tests/native against the torch-free part of ringcomm_ext and runs it: plain, sanitized, or for aarch64.

    scripts/native.py [plain] [thread] [address] [aarch64] [--only NAME]

Without a mode: the first three. aarch64 is built by a cross compiler and run by an emulator of the processor (Debian,
Ubuntu: apt-get install g++-aarch64-linux-gnu qemu-user). That shows that the core compiles there and gives the same
bits; it does not show aarch64's weaker memory order, because the emulator runs on this machine's stronger one.

Each `*_test.cpp` is a program; exit status 0 is success. What is in PLANTED is built once more with a macro that plants
a bug, and a `*_planted.cpp` holds one; ThreadSanitizer must report a data race in each, or the run fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "native"
FOLDERS = ["core", "cuda", "connections", "engine"]
BASE = "-std=c++20 -Wall -g1 -ffp-contract=off -pthread -fno-omit-frame-pointer -UNDEBUG"
LIMIT = 300.0  # seconds for one program
AARCH64_ROOT = "/usr/aarch64-linux-gnu"  # where the cross compiler's packages put the loader and libraries


@dataclass(frozen=True)
class Mode:
    """A way to build and run: flags, what comes before the program's name, compiler (None: $CXX, else c++)."""

    flags: str
    runner: tuple[str, ...] = ()
    compiler: str | None = None

    @property
    def cxx(self) -> str:
        return self.compiler or os.environ.get("CXX", "c++")

    def missing(self) -> list[str]:
        """Commands this mode needs that are not here."""
        return [command for command in (*self.cxx.split()[:1], *self.runner[:1]) if shutil.which(command) is None]


MODES = {
    "plain": Mode("-O2"),
    # ThreadSanitizer needs its shadow where the kernel's address randomisation may put something else.
    "thread": Mode("-O1 -fsanitize=thread", ("setarch", "--addr-no-randomize")),
    "address": Mode("-O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"),
    # The emulator lets a load overtake a store-release: emulated_order.h.
    "aarch64": Mode(
        f"-O2 -include {TESTS}/emulated_order.h", ("qemu-aarch64", "-L", AARCH64_ROOT), "aarch64-linux-gnu-g++"
    ),
}
DEFAULT_MODES = ["plain", "thread", "address"]
SANITIZER_OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 exitcode=66 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
PLANTED = {"fifo_test": "RINGCOMM_PLANTED_RELAXED_PUBLISH"}
CAUGHT = "data race"
VECTOR_KERNELS = "reduce_avx"
"""Sources that are reduce_generic.cpp once more, for other processors: undefined behaviour is looked for in that one
only, for it costs a minute and a half of compiler in each."""
ONE_THREAD = ("copy_test", "cuda_abi_test", "hmac_test", "program_test", "reduce_test", "verbs_abi_test")
"""Programs that make no thread: ThreadSanitizer has nothing to see in them, and takes minutes not to see it."""
NOT_EMULATED = (
    "cuda_check_test",
    "cuda_enqueuer_test",
    "cuda_failure_test",
    "cuda_group_test",
    "cuda_processes_test",
    "cuda_runtime_test",
    "cuda_spin_test",
)
"""Programs over the fake CUDA driver's host memory, which is mapped twice by an mremap that qemu-user refuses."""

FAKE_CUDA = "libfake_cuda.so"
"""The fake driver as what it stands for, a library to open: for cuda_driver_test, which looks for it beside itself."""
FAKE_CUDA_SOURCES = [*sorted(TESTS.glob("fake_cuda*.cpp")), ROOT / "ringcomm_ext" / "cuda" / "driver.cpp"]
LEFT_OUT = {"thread": ONE_THREAD, "aarch64": NOT_EMULATED}


@dataclass
class Program:
    """One executable to build and run; `planted` is the macro, or the file's own name, of a bug that must be caught."""

    name: str
    mode: str
    source: Path
    planted: str | None = None
    macros: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Objects are shared by all programs with the same flags."""
        return ROOT / "build" / "native" / "-".join([self.mode, *self.macros])

    @property
    def binary(self) -> Path:
        return self.folder / self.name

    @property
    def label(self) -> str:
        return f"{self.name} [{self.mode}]" + (f" with {self.planted}" if self.planted else "")


def programs(modes: list[str], only: str | None) -> Iterator[Program]:
    for mode in modes:
        for source in sorted(TESTS.glob("*_test.cpp")):
            if (only is None or only in source.stem) and source.stem not in LEFT_OUT.get(mode, ()):
                yield Program(source.stem, mode, source)
                if mode == "thread" and source.stem in PLANTED:
                    macro = PLANTED[source.stem]
                    yield Program(source.stem, mode, source, macro, [macro])
        for source in sorted(TESTS.glob("*_planted.cpp")) if mode == "thread" else []:
            if only is None or only in source.stem:
                yield Program(source.stem, mode, source, source.name)


def helpers(program: Program) -> list[Path]:
    """Sources in tests/native that belong to no single program."""
    own = ("_test.cpp", "_planted.cpp")
    return [] if program.macros else [path for path in sorted(TESTS.glob("*.cpp")) if not path.name.endswith(own)]


RULES = [
    "rule compile",
    f"  command = $compiler {BASE} $flags $more -I{ROOT}/ringcomm_ext -I{TESTS} -MMD -MF $out.d -c $in -o $out",
    "  depfile = $out.d",
    "  deps = gcc",
    "rule link",
    "  command = $compiler $flags $in -pthread -ldl -o $out",
]


def ninja_file(todo: list[Program]) -> str:
    """Objects once per set of flags, then one link per program."""
    lines = list(RULES)
    done: set[Path] = set()
    for program in todo:
        mode = MODES[program.mode]
        flags = " ".join([mode.flags, *(f"-D{macro}" for macro in program.macros)])
        variables = [f"  flags = {flags}", f"  compiler = {mode.cxx}"]
        objects = []
        # A planted macro is for one header of the core: no need to build the engine once more with it.
        folders = FOLDERS[:1] if program.macros else FOLDERS
        sources = [path for folder in folders for path in sorted((ROOT / "ringcomm_ext" / folder).glob("*.cpp"))]
        for source in [program.source, *helpers(program), *sources]:
            target = program.folder / f"{source.relative_to(ROOT)}.o"
            objects.append(str(target))
            if target not in done:
                done.add(target)
                lines += [f"build {target}: compile {source}", *variables]
                if program.mode == "address" and source.stem.startswith(VECTOR_KERNELS):
                    lines.append("  more = -fno-sanitize=undefined")
        lines += [f"build {program.binary}: link {' '.join(objects)}", *variables]
        if program.name == "cuda_driver_test":
            lines += fake_cuda(program, flags)
    return "\n".join([*lines, ""])


def fake_cuda(program: Program, flags: str) -> list[str]:
    """The rules for the fake driver as a library: objects of its own, since a library's are position independent."""
    lines, objects = [], []
    compiler = f"  compiler = {MODES[program.mode].cxx}"
    for source in FAKE_CUDA_SOURCES:
        objects.append(str(program.folder / "shared" / f"{source.name}.o"))
        lines += [f"build {objects[-1]}: compile {source}", f"  flags = {flags} -fPIC", compiler]
    shared = f"  flags = {flags} -shared -Wl,-Bsymbolic"
    return [*lines, f"build {program.folder / FAKE_CUDA}: link {' '.join(objects)}", shared, compiler]


def fake_cuda_library(mode: str) -> Path:
    """Builds the fake driver and nothing else, and gives its path. Raises OSError where that fails."""
    program = Program("cuda_driver_test", mode, TESTS / "cuda_driver_test.cpp")
    if not run_ninja("\n".join([*RULES, *fake_cuda(program, MODES[mode].flags), ""]), "fake_cuda.ninja"):
        raise OSError("the fake driver was not built")
    return program.folder / FAKE_CUDA


def build(todo: list[Program]) -> bool:
    return run_ninja(ninja_file(todo), "build.ninja")


def run_ninja(text: str, name: str) -> bool:
    """Builds what the text says, kept under this name so that ninja knows what it did."""
    folder = ROOT / "build" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    ninja = Path(sys.executable).with_name("ninja")
    command = [str(ninja) if ninja.exists() else "ninja", "-C", str(folder), "-f", str(file), "--quiet"]
    try:
        return subprocess.run(command).returncode == 0
    except FileNotFoundError:
        print("ninja is missing: pip install ninja, or use scripts/sanitize, which installs it", file=sys.stderr)
        return False


def execute(program: Program) -> tuple[int, str]:
    """Exit status (124: over the limit) and all output."""
    environment = {**os.environ, **SANITIZER_OPTIONS}
    command = [*MODES[program.mode].runner, str(program.binary)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        output = late.output or b""
        return 124, output.decode(errors="replace") if isinstance(output, bytes) else output
    return done.returncode, done.stdout


def judge(program: Program, status: int, output: str) -> str | None:
    """Why the run is a failure, or None."""
    if program.planted is None:
        return None if status == 0 else f"exit status {status}" + (f" (over {LIMIT:.0f} s)" if status == 124 else "")
    if status == 0 or CAUGHT not in output:
        return f"the planted bug was not caught (exit status {status}, no '{CAUGHT}' in the output)"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", help=f"of {', '.join(MODES)}; default {' '.join(DEFAULT_MODES)}")
    parser.add_argument("--only", help="only programs with this in their name")
    args = parser.parse_args()
    unknown = [mode for mode in args.modes if mode not in MODES]
    if unknown:
        parser.error(f"there is no mode {unknown[0]!r}; there are {', '.join(MODES)}")
    modes = args.modes or DEFAULT_MODES
    for mode in modes:
        if missing := MODES[mode].missing():
            print(f"native: mode {mode} needs {', '.join(missing)}, not found here", file=sys.stderr)
            return 1
    todo = list(programs(modes, args.only))
    if not todo:
        print(f"no native tests found in {TESTS}", file=sys.stderr)
        return 1
    if not build(todo):
        return 1
    failed = 0
    for program in todo:
        start = time.monotonic()
        status, output = execute(program)
        problem = judge(program, status, output)
        verdict = "FAILED" if problem else "caught" if program.planted else "ok    "
        print(
            f"  {verdict}  {program.label}  {time.monotonic() - start:.1f} s" + (f": {problem}" if problem else ""),
            flush=True,
        )
        if problem:
            failed += 1
            print("\n".join(f"  | {line}" for line in output.splitlines()[-60:]), flush=True)
    print(f"native: {len(todo) - failed} programs good, {failed} bad", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
