"""What this process holds: for tests and the soak that look for growth."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

SEGMENT = "memfd:ringcomm"


def usage() -> dict[str, int]:
    """descriptors, threads, mappings of our segments; resident, in KiB: all, private (heap, stacks), our segments."""
    mappings, segments = our_segments()
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "mappings": mappings,
        "KiB": int(status["VmRSS"].split()[0]),
        "private KiB": int(status["RssAnon"].split()[0]),
        "segment KiB": segments // 1024,
    }


def give_back_free_memory() -> None:
    """Frees what nobody refers to and returns the allocator's free memory, so that only what is held counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def our_segments() -> tuple[int, int]:
    """Mappings of our segments in this process, and the bytes of them in its page tables."""
    mappings, resident, ours = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = SEGMENT in line
            mappings += ours
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return mappings, resident
