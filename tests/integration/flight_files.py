"""What the tests of the flight record share: a group, its calls, and torch's analyser."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

Store = Any


def start(timeout: float = 60.0, **kwargs: Any) -> Store:
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=timeout), **kwargs)
    return dist.distributed_c10d._get_default_store()


def summed(*shape: int, group: Any = None) -> None:
    dist.all_reduce(torch.ones(*shape), group=group)


def analysis(folder: Path, *arguments: str, first: int = 0) -> str:
    """What torch's analyser says about a folder of files. It reads them in the order of the directory, and takes the
    calls of the first for right; here that is rank `first`."""
    from torch.distributed.flight_recorder import fr_trace
    from torch.distributed.flight_recorder.components import loader

    said: list[str] = []

    def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        yield top, [], sorted(os.listdir(top), key=lambda name: (name != f"fr_{first}", name))

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Handler()
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    try:
        with patch.object(loader.os, "walk", walk):
            fr_trace.main([str(folder), "-p", "fr_", *arguments])
    finally:
        logger.removeHandler(handler)
        gc.enable()  # the analyser leaves it off
    return "\n".join(said)


def wait_for_file(path: str) -> None:
    done = threading.Event()
    for _ in range(600):
        if os.path.exists(path):
            return
        done.wait(0.05)
    raise AssertionError(f"{path} did not come within 30 s")
