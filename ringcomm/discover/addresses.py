"""IPv4 and IPv6 addresses of each interface, by getifaddrs (Python's socket module does not have it)."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import socket
from collections.abc import Iterator

from ringcomm.topology.facts import Address


class _Sockaddr(ctypes.Structure):
    """The parts of sockaddr, sockaddr_in (address at byte 4) and sockaddr_in6 (at byte 8) that we read."""

    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = (
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Sockaddr)),
    ("mask", ctypes.POINTER(_Sockaddr)),
    ("other_end", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)
_PLACE = {socket.AF_INET: (2, 4), socket.AF_INET6: (6, 16)}  # offset in `data`, length


def addresses() -> dict[str, tuple[Address, ...]]:
    """Interface name -> its addresses, IPv4 first. Of this network namespace. Raises OSError if the kernel refuses."""
    found: dict[str, list[Address]] = {}
    for name, address in _all():
        found.setdefault(name, []).append(address)
    return {name: tuple(sorted(each, key=lambda a: a.family)) for name, each in found.items()}


def _all() -> Iterator[tuple[str, Address]]:
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"getifaddrs: {os.strerror(error)}")
    try:
        entry = head
        while entry:
            one = entry.contents
            if one.address and one.address.contents.family in _PLACE:
                yield os.fsdecode(one.name), _address(one)
            entry = one.next
    finally:
        libc.freeifaddrs(head)


def _address(entry: _Ifaddrs) -> Address:
    family = entry.address.contents.family
    packed = _packed(entry.address.contents, family)
    # A point-to-point interface may come without a mask.
    bits = int.from_bytes(_packed(entry.mask.contents, family), "big").bit_count() if entry.mask else 8 * len(packed)
    return Address(socket.inet_ntop(family, packed), bits)


def _packed(address: _Sockaddr, family: int) -> bytes:
    offset, length = _PLACE[socket.AddressFamily(family)]
    return bytes(address.data[offset : offset + length])
