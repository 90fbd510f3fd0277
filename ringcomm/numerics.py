"""What `numerics` of a configuration asks of schedules (docs/numerics.md). Chooses none; policy.py does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcomm.config import Config

if TYPE_CHECKING:
    from ringcomm.schedules import Numerics

# The collectives that reduce, and the direct schedule of each: it combines all ranks in one step, in the tree's order.
DIRECT = {"all_reduce": "two_shot", "reduce": "one_shot", "reduce_scatter": "one_shot"}


def is_eligible(config: Config, collective: str, schedule: str, ranks: int) -> bool:
    """Whether a rule may carry the collective: not if `reproducible` is asked for and its schedule has another order.

    Raises ScheduleError where a user's schedule does not serve a group of `ranks`.
    """
    if not config.numerics.reproducible or collective not in DIRECT:
        return True
    return _numerics(config, collective, schedule, ranks).tree


def travels_wide(config: Config, collective: str, schedule: str, ranks: int) -> bool:
    """Whether 16-bit floats must travel as float32 to be rounded once: not where one step combines all ranks anyway."""
    asked = config.numerics.reproducible or config.numerics.accumulate == "float32"
    if not asked or collective not in DIRECT:
        return False
    return not _numerics(config, collective, schedule, ranks).one_step


def _numerics(config: Config, collective: str, schedule: str, ranks: int) -> Numerics:
    from ringcomm import schedules  # only a configuration that asks pays for the import

    return schedules.numerics(collective, schedule, ranks, config.memory.slots)
