"""Settings that a process has once: those of its first group hold, and who asks for others later is told so."""

from __future__ import annotations

from collections.abc import Iterator

from ringcomm.config import Config

LOG = ("debug.level", "debug.file")
ENGINE = ("progress.workers", "memory.limit", "memory.registered")

_said: set[str] = set()


def passed_over(first: Config, settings: Config, keys: tuple[str, ...]) -> Iterator[str]:
    """A sentence for each of `keys` that `settings` were to change; for each key once in a process.

    first: the settings of the process's first group. A group whose configuration says nothing of a key changes nothing.
    """
    if settings is first:
        return
    before, now = first.values(), settings.values()
    for key in keys:
        if now[key] != before[key] and settings.asked_for(key) and key not in _said:
            _said.add(key)
            place = first.sources.get(key, "built-in default")
            yield (
                f"{key} is {now[key]} for this group ({settings.sources[key]}), but a process has one, its first "
                f"group's: it stays {before[key]} ({place})"
            )
