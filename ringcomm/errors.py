"""Exception types; no handling. A user's mistake names the key or argument, its value and what is allowed."""

from __future__ import annotations


class RingcommError(RuntimeError):
    """Base of every exception ringcomm raises by itself."""


class ConfigError(RingcommError, ValueError):
    """A setting is not understood, out of range, or excludes another. Names key, value, what is allowed and place."""


class BootstrapError(RingcommError):
    """A group could not be made: a rank did not come in time or the store failed. Names group, ranks, seconds."""


class AgreementError(RingcommError):
    """Ranks of one group were started with different settings or versions. The text is the same on every rank."""


def __getattr__(name: str) -> type:
    # ScheduleError is defined where schedules are checked; naming it here must not import numpy with it.
    if name == "ScheduleError":
        from ringcomm.program import ScheduleError

        return ScheduleError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
