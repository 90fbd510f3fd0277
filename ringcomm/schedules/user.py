"""Loading a user's own schedules. Nothing is registered before it passed the verifier for the asked ranks."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from ringcomm import schedules
from ringcomm.program.ops import DEFAULT_SLOTS, Problem, ScheduleError
from ringcomm.program.verify import verify
from ringcomm.schedules.registry import Schedule

Source = str | Path | ModuleType


def load_user(source: Source, ranks: Iterable[int] = (1, 2, 3, 4), slots: int = DEFAULT_SLOTS) -> list[str]:
    """Registers the schedules of a Python file (path ending in .py) or a module (or its name); returns their names.

    Each schedule is verified for every one of `ranks`, every collective it serves and every root. Raises ScheduleError
    naming file, schedule and what is wrong; then nothing of the file is registered. Loading a file again replaces its
    schedules; built-in names are refused.
    """
    found = read_user(source)
    for schedule in found:
        for n in ranks:
            _verify(source, schedule, n, slots)
    for schedule in found:
        schedules.SCHEDULES[schedule.name] = schedule
    schedules.build.cache_clear()
    schedules.verify_schedule.cache_clear()
    schedules.numerics.cache_clear()
    return [schedule.name for schedule in found]


def read_user(source: Source) -> list[Schedule]:
    """The list SCHEDULES of a user's file or module, neither verified nor registered. Raises ScheduleError."""
    module = _import(source)
    found = getattr(module, "SCHEDULES", None)
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(s, Schedule) for s in found):
        raise ScheduleError(
            f"schedules: {source}: needs a list SCHEDULES of ringcomm.schedules.Schedule; its SCHEDULES is {found!r}"
        )
    names = [schedule.name for schedule in found]
    for name in names:
        if name in schedules.BUILT_IN:
            raise ScheduleError(f"schedules: {source}: {name!r} is a built-in schedule; choose another name")
        if names.count(name) > 1:
            raise ScheduleError(f"schedules: {source}: {name!r} is defined twice")
    return list(found)


def _import(source: Source) -> ModuleType:
    if isinstance(source, ModuleType):
        return source
    if isinstance(source, str) and not source.endswith(".py"):
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise ScheduleError(
                f"schedules: {source!r} is neither a module nor a path ending in .py ({error})"
            ) from None
    path = Path(source).resolve()
    if not path.is_file():
        raise ScheduleError(f"schedules: {source}: no such file")
    name = f"ringcomm_user_schedules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ScheduleError(f"schedules: {source}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle in the user's file look their module up by name
    spec.loader.exec_module(module)
    return module


def _verify(source: Source, schedule: Schedule, ranks: int, slots: int) -> None:
    for collective in schedule.collectives:
        for root in schedules.roots(collective, ranks):
            try:
                verify([schedule.build(Problem(collective, ranks, rank, root, slots)) for rank in range(ranks)])
            except ScheduleError as error:
                raise ScheduleError(f"schedules: {source}: schedule {schedule.name!r} refused: {error}") from None
