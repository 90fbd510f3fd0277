"""Small files of /proc and /sys, which may be absent, unreadable or empty on some kernels and in containers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
"""Where proc and sys are looked for; tests put a folder of theirs in its place."""


def text(path: Path) -> str:
    """The content without surrounding blanks, '' if it cannot be read (a down interface answers EINVAL)."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def number(path: Path, base: int = 10) -> int | None:
    """The whole number in a file, None if there is none. base 0 takes the prefix 0x."""
    try:
        return int(text(path), base)
    except ValueError:
        return None


def folders(path: Path) -> list[Path]:
    """What lies in a folder, by name; nothing where it is not there."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def numbered(path: Path, stem: str) -> list[tuple[int, Path]]:
    """The entries `stem0`, `stem1`, ... of a folder with their numbers, rising."""
    found = [(entry.name.removeprefix(stem), entry) for entry in folders(path) if entry.name.startswith(stem)]
    return sorted((int(digits), entry) for digits, entry in found if digits.isdecimal())
