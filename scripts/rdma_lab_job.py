"""A command that runs on a node of an RDMA lab."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

LOST = 125
"""The status of a command whose kernel is gone."""


class Job:
    """A command on a node. Like a Popen as far as net_lab_run needs it. Threads: any."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._changed = threading.Condition()
        self._text: list[str] = []
        self._status: int | None = None

    @property
    def stdout(self) -> Iterator[str]:
        """Its lines as they come, of both its outputs."""
        part, rest = 0, ""
        while True:
            with self._changed:
                while len(self._text) == part and self._status is None:
                    self._changed.wait()
                new = self._text[part:]
                part += len(new)
            if not new:
                break
            *lines, rest = (rest + "".join(new)).split("\n")
            yield from (f"{line}\n" for line in lines)
        if rest:
            yield rest

    def poll(self) -> int | None:
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; TimeoutError where it has not ended by then, and goes on."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._status is not None, timeout):
                raise TimeoutError(f"not ended in {timeout} s; it said:\n{''.join(self._text)[-4000:]}")
        assert self._status is not None
        return self._status

    def text(self) -> str:
        """All it said so far."""
        return "".join(self._text)

    def kill(self) -> None:
        self._stop()

    def _said(self, text: str) -> None:
        with self._changed:
            self._text.append(text)
            self._changed.notify_all()

    def _ended(self, status: int) -> None:
        with self._changed:
            if self._status is None:
                self._status = status
            self._changed.notify_all()
