"""Proof that two processes are on one node: one opens shared memory of the other. Nothing else proves it.

The same way the data plane takes: a memfd handed over an abstract Unix socket, which reaches as far as the network
namespace does. The memory holds a secret that travels in the card, so a stranger's socket of that name proves nothing.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
from types import TracebackType

_BYTES = 16


class Offer:
    """Memory that other processes may open while the `with` block lasts. One thread of its own serves them."""

    def __init__(self) -> None:
        secret = secrets.token_bytes(_BYTES)
        self.secret = secret.hex()
        self.name = f"ringcomm-topo-{secrets.token_hex(8)}"
        self._memory = os.memfd_create(self.name, os.MFD_CLOEXEC)
        os.write(self._memory, secret)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(1024)
        self._thread = threading.Thread(target=self._serve, name="ringcomm-topo", daemon=True)

    def __enter__(self) -> Offer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        # close() alone does not wake a thread that is in accept().
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        os.close(self._memory)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                try:
                    socket.send_fds(peer, [b"m"], [self._memory])
                except OSError:
                    continue  # it has gone; the next may not have


def can_open(name: str, secret: str, timeout: float) -> bool:
    """Whether the memory of the offer of that name can be opened here and holds the secret. timeout: seconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        try:
            peer.connect(f"\0{name}")
            _, files, _, _ = socket.recv_fds(peer, 1, 1)
        except OSError:
            return False
    try:
        return bool(files) and _content(files[0]) == bytes.fromhex(secret)
    finally:
        for file in files:
            os.close(file)


def _content(file: int) -> bytes:
    """By mapping it, as the data plane would use it."""
    try:
        with mmap.mmap(file, _BYTES, prot=mmap.PROT_READ) as memory:
            return memory[:]
    except (OSError, ValueError):
        return b""
