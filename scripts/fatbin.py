"""Builds ringcomm/kernels.fatbin, the device code of ringcomm_ext/cuda, where there is an nvcc; else says why not.

No CUDA header and no CUDA library takes part in the rest of the build, and torch's idea of where CUDA is is not asked
for: nvcc is $CUDA_HOME/bin/nvcc, $CUDA_PATH/bin/nvcc or the one on PATH. RINGCOMM_BUILD_CUDA_TARGETS chooses what it
compiles for: some of sm_80, sm_90, sm_100 (and others that nvcc knows) and ptx, or none. Results are kept in build/, by
a digest of all that goes in.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "ringcomm_ext" / "cuda" / "kernels.cu"
NAME = "kernels.fatbin"
VARIABLE = "RINGCOMM_BUILD_CUDA_TARGETS"
DEFAULT_TARGETS = ("sm_80", "sm_90", "sm_100", "ptx")  # an sm_80 cubin serves 8.6 and 8.9 too; ptx: all after the last
# -fmad=false: sums and products keep the roundings of the host's kernels.
FLAGS = ["-std=c++20", "-O3", "-fmad=false", f"-I{ROOT / 'ringcomm_ext'}"]


class NoKernels(Exception):
    """No kernels can be built; the message is the sentence that says why, without paths."""


class WrongTargets(ValueError):
    """RINGCOMM_BUILD_CUDA_TARGETS names what cannot be; the message says what can."""


@dataclass(frozen=True)
class Kernels:
    """What a build came to: the file and what is in it, or why there is none."""

    file: Path | None
    targets: str = ""
    missing: str = ""


def find_nvcc() -> str:
    """The command. Raises NoKernels."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        folder = os.environ.get(variable)
        if folder and os.access(Path(folder, "bin", "nvcc"), os.X_OK):
            return str(Path(folder, "bin", "nvcc"))
    found = shutil.which("nvcc")
    if found is None:
        raise NoKernels("no nvcc was found when ringcomm was built (CUDA_HOME, CUDA_PATH, PATH)")
    return found


def wanted_targets(nvcc: str) -> list[str]:
    """From the environment, else the default ones that this nvcc knows. Raises NoKernels for none, WrongTargets."""
    text = os.environ.get(VARIABLE, "")
    if text.strip() == "none":
        raise NoKernels(f"{VARIABLE}=none when ringcomm was built")
    known = {*_output([nvcc, "--list-gpu-code"]).split(), "ptx"}
    if not text.strip():
        return [target for target in DEFAULT_TARGETS if target in known]
    targets = [word for word in text.replace(",", " ").split() if word]
    for target in targets:
        if target not in known:
            raise WrongTargets(f"{VARIABLE} names {target!r}; this nvcc knows {', '.join(sorted(known))}, or none")
    if targets == ["ptx"]:
        raise WrongTargets(f"{VARIABLE}=ptx alone does not say for which; name an sm_ target beside it")
    return targets


def build(folder: Path) -> Kernels:
    """Compiles into `folder`, or takes what is there. Raises WrongTargets; a missing or failing nvcc is a result."""
    try:
        nvcc = find_nvcc()
        targets = wanted_targets(nvcc)
        return Kernels(_cached(folder, nvcc, NAME, ["-fatbin", *_gencodes(targets)]), " ".join(targets))
    except NoKernels as reason:
        return Kernels(None, missing=str(reason))


def ptx(folder: Path, architecture: str = "90") -> Path:
    """The PTX of all kernels, for the tests that read it. Raises NoKernels."""
    return _cached(folder, find_nvcc(), "kernels.ptx", ["-ptx", f"-arch=compute_{architecture}"])


def sources() -> list[Path]:
    """All files that the device code is made of: the source and what it includes, directly or not."""
    found: dict[Path, None] = {SOURCE: None}
    todo = [SOURCE]
    while todo:
        for name in re.findall(r'^#include "(.+)"$', todo.pop().read_text(), re.MULTILINE):
            path = ROOT / "ringcomm_ext" / name
            if path not in found:
                found[path] = None
                todo.append(path)
    return sorted(found)


def _gencodes(targets: list[str]) -> list[str]:
    real = [target.removeprefix("sm_") for target in targets if target != "ptx"]
    codes = [f"arch=compute_{n},code=sm_{n}" for n in real]
    if "ptx" in targets:
        newest = max(real, key=lambda n: int(n.rstrip("abf")))
        codes.append(f"arch=compute_{newest},code=compute_{newest}")
    return [word for code in codes for word in ("-gencode", code)]


def _cached(folder: Path, nvcc: str, name: str, flags: list[str]) -> Path:
    digest = hashlib.sha256()
    for part in (_output([nvcc, "--version"]), *FLAGS[:-1], *flags):
        digest.update(part.encode() + b"\0")
    for path in sources():
        digest.update(path.read_bytes() + b"\0")
    target = folder / f"cuda-{digest.hexdigest()[:16]}" / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_suffix(".part")
        jobs = os.environ.get("MAX_JOBS", str(len(os.sched_getaffinity(0))))
        _output([nvcc, *FLAGS, *flags, "-t", jobs, str(SOURCE), "-o", str(half)])
        half.rename(target)
    return target


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "error" in line.lower()] or done.stdout.splitlines()[-1:]
        print(done.stdout)
        raise NoKernels(f"nvcc failed when ringcomm was built: {' '.join(lines[:1]).replace(str(ROOT) + '/', '')}")
    return done.stdout
