"""Messages between the RDMA lab and its agent: one JSON object a line, over a socket or a guest's serial port."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]


class Channel:
    """Both directions of one descriptor, which it does not close. `send` may be called from any thread; one reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """False where nobody is there any more."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                return False
        return True

    def messages(self) -> Iterator[Message]:
        """Until the other end is gone."""
        buffer = b""
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:
                return
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            yield from (json.loads(line) for line in lines if line)
