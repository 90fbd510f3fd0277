"""Runs one command on every host of a lab, whichever lab it is, and shows what each says."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

CANNOT = 77
"""Exit status where the machine cannot make the lab."""


class Process(Protocol):
    """What runs on a host: a Popen with text output, or a job of a guest."""

    @property
    def stdout(self) -> Iterable[str] | None: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


def filled(command: Sequence[str], words: Mapping[str, object]) -> list[str]:
    """With {word} replaced by its value. Not str.format: other braces in the command are its own."""
    for word, value in words.items():
        command = [part.replace(f"{{{word}}}", str(value)) for part in command]
    return list(command)


def run(start: Callable[[int], Process], names: Sequence[str], grace: float) -> list[int | None]:
    """Starts the command on host 0, 1, ..., and returns their statuses; None for those that had not ended by `grace`
    seconds after another one had failed."""
    processes, readers = [], []
    for host, name in enumerate(names):
        process = start(host)
        reader = threading.Thread(target=_show, args=(name, process), daemon=True)
        reader.start()
        processes.append(process)
        readers.append(reader)
    deadline = float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.poll() for process in processes):
            deadline = time.monotonic() + grace
        time.sleep(0.05)
    for process, reader in zip(processes, readers, strict=True):
        if process.poll() is not None:
            reader.join(grace)
    return [process.poll() for process in processes]


def _show(name: str, process: Process) -> None:
    for line in process.stdout or ():
        print(f"[{name}] {line}", end="", flush=True)
    sys.stdout.flush()
