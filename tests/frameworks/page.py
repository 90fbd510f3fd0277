"""A page of docs/frameworks as a program: its files, its commands, and what it promises they print.

A fence "```python NAME" is a file, "```sh" is run by bash in the folder of the files, and each line of a "```text" must
be part of some line that the commands before it printed. Other fences are for the reader only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT = 300  # seconds for one block of commands; DeepSpeed compiles for a minute at its first start


@dataclass(frozen=True)
class Block:
    kind: str
    """python, sh or text."""
    name: str
    """The file's, else empty."""
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks that count, in their order."""
    found = [Block(kind, name, text) for kind, name, text in FENCE.findall(page)]
    return [block for block in found if block.kind in ("sh", "text") or (block.kind == "python" and block.name)]


def run(page: str, folder: Path) -> int:
    """Carries a page out in an empty folder; returns how many lines it promised.

    AssertionError with the output if a promised line is missing or a command fails.
    """
    output, promised = "", 0
    for block in blocks(page):
        if block.kind == "python":
            (folder / block.name).write_text(block.text)
        elif block.kind == "sh":
            output = commands(block.text, folder)
        else:
            missing = [line for line in block.text.splitlines() if line not in output]
            assert not missing, f"not printed: {missing}; but:\n{output}"
            promised += len(block.text.splitlines())
    return promised


def commands(text: str, folder: Path) -> str:
    """Both streams of the commands; AssertionError with them if one fails."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all over, as it should be
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{text} ended with {process.returncode}:\n{output}"
    return output


def environment(folder: Path) -> dict[str, str]:
    """Ours, with this interpreter's commands first, and a home directory that the frameworks may write into."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RINGCOMM_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**ours, "PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
