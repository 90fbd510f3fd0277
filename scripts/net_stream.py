"""A bulk TCP stream between two ranks, to put beside what a collective reaches on the same link."""

from __future__ import annotations

import socket
import threading
import time

PIECE = 1 << 20
"""Bytes handed to the kernel at a time."""


class Stream:
    """One plain socket between a pair of processes, with the kernel's own settings. Both make it, both call `carry`.

    Threads: one at a time.
    """

    def __init__(self, address: str, port: int, accepts: bool) -> None:
        """address, port: where the one that `accepts` listens. Raises OSError if they do not meet in 20 s."""
        if accepts:
            with socket.create_server((address, port)) as server:
                server.settimeout(20)
                self._socket = server.accept()[0]
        else:
            self._socket = _dialled(address, port, time.monotonic() + 20)
        self._socket.settimeout(120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._first = accepts
        self._out, self._in = bytes(PIECE), bytearray(PIECE)

    def carry(self, pieces: int, both: bool) -> float:
        """Seconds until the other side has all `pieces`; from the one that accepted, or each way at once if `both`."""
        begin = time.perf_counter()
        sends = threading.Thread(target=self._send, args=(pieces,))
        if both or self._first:
            sends.start()
        if both or not self._first:
            self._receive(pieces * PIECE)
        if both or self._first:
            sends.join()
        # A byte back: what was sent has been read, not only taken by the kernel.
        self._socket.sendall(b"x")
        self._receive(1)
        return time.perf_counter() - begin

    def close(self) -> None:
        self._socket.close()

    def _send(self, pieces: int) -> None:
        for _ in range(pieces):
            self._socket.sendall(self._out)

    def _receive(self, count: int) -> None:
        while count > 0:
            n = self._socket.recv_into(self._in, min(count, PIECE))
            if n == 0:
                raise ConnectionError("the other side of the stream is gone")
            count -= n


def _dialled(address: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
