"""What a launcher such as torchrun tells a command that it starts as one of the ranks."""

from __future__ import annotations

import os


def wrong_variable() -> str:
    """What is wrong with RANK or WORLD_SIZE, '' where both are numbers or no launcher set both."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return ""
    for name, least in (("RANK", 0), ("WORLD_SIZE", 1)):
        value = os.environ[name]
        if not value.isdecimal() or int(value) < least:
            return f"environment {name} is {value!r}; the launcher's must be a whole number from {least}"
    return ""
