"""Loading a user's own schedules. Nothing is registered before it passed the verifier for the asked ranks."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ringcomm import schedules
from ringcomm.program.ops import DEFAULT_SLOTS, Collective, Problem, Program, ScheduleError
from ringcomm.program.verify import verify
from ringcomm.schedules.registry import GeneratorError, Schedule

Source = str | Path | ModuleType


@dataclass(frozen=True)
class Origin:
    """Where a schedule was defined. Files of one text are one origin, wherever they lie."""

    text: str | None
    """A file's; None: `where` is a module."""
    where: str = field(compare=False)
    module: ModuleType | None = None


_origins: dict[str, Origin] = {}
"""Of every name that was loaded."""
_kept: set[str] = set()
"""Names that a group was made with: its ranks build programs by them as long as the process lives."""
_proved: set[tuple[Origin, tuple[int, ...] | None, int]] = set()


_MOST_TRIED = 64  # ranks


def load_user(source: Source, ranks: Iterable[int] | None = None, slots: int = DEFAULT_SLOTS) -> list[str]:
    """Registers the schedules of a Python file (path ending in .py) or a module (or its name); returns their names.

    Each schedule is verified for every one of `ranks`, every collective it serves and every root. None: for 1 to 4
    ranks, where its function may refuse some by a ScheduleError of its own, but not all numbers up to 64. Raises
    ScheduleError naming file, schedule and what is wrong; then nothing of the file is registered. Loading a changed
    file, or another with the same names, replaces schedules that no group of this process was made with; of others it
    is refused, and so are built-in names.
    """
    origin, wanted = _origin(source), None if ranks is None else tuple(ranks)
    known = [name for name, its in _origins.items() if its == origin and name in schedules.SCHEDULES]
    if known and (origin, wanted, slots) in _proved:
        return known
    found = read_user(source)
    for schedule in found:
        _refuse_another(source, schedule.name, origin)
    for schedule in found:
        _verify(source, schedule, wanted, slots)
    for schedule in found:
        schedules.SCHEDULES[schedule.name] = schedule
        _origins[schedule.name] = origin
    _proved.add((origin, wanted, slots))
    schedules.build.cache_clear()
    schedules.verify_schedule.cache_clear()
    schedules.numerics.cache_clear()
    return [schedule.name for schedule in found]


def keep(names: Iterable[str]) -> None:
    """A group is made with these: from here on no other schedule gets their names."""
    _kept.update(names)


def _refuse_another(source: Source, name: str, origin: Origin) -> None:
    held = _origins.get(name)
    if name in _kept and name in schedules.SCHEDULES and held is not None and held != origin:
        before = f"{held.where} as it was" if held.where == origin.where else held.where
        raise ScheduleError(
            f"schedules: {source}: {name!r} is taken: a group of this process was made with the one of {before}; "
            "choose another name, or start the process again"
        )


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


def _file(source: Source) -> Path | None:
    """The file it names; None where it is a module, or the name of one. Raises ScheduleError where there is no file."""
    if isinstance(source, ModuleType) or (isinstance(source, str) and not source.endswith(".py")):
        return None
    path = Path(source).resolve()
    if not path.is_file():
        raise ScheduleError(f"schedules: {source}: no such file")
    return path


def _origin(source: Source) -> Origin:
    path = _file(source)
    if path is None:
        module = _import(source)
        return Origin(None, f"module {module.__name__}", module)
    return Origin(path.read_text(encoding="utf-8"), str(path))


def _import(source: Source) -> ModuleType:
    if isinstance(source, ModuleType):
        return source
    path = _file(source)
    if path is None:
        try:
            return importlib.import_module(str(source))
        except ModuleNotFoundError as error:
            raise ScheduleError(
                f"schedules: {source!r} is neither a module nor a path ending in .py ({error})"
            ) from None
        except Exception as error:  # the user's code may raise anything
            raise ScheduleError(f"schedules: {source}: {type(error).__name__}: {error}") from error
    name = f"ringcomm_user_schedules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ScheduleError(f"schedules: {source}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle in the user's file look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ScheduleError(f"schedules: {source}: {type(error).__name__}: {error}") from error
    return module


def _verify(source: Source, schedule: Schedule, ranks: tuple[int, ...] | None, slots: int) -> None:
    try:
        for collective in schedule.collectives:
            served = [_serves(schedule, collective, n, slots, ranks is None) for n in ranks or range(1, 5)]
            if not any(served):
                _find_one(schedule, collective, slots)
    except ScheduleError as error:
        text = f"schedules: {source}: schedule {schedule.name!r} refused: {error}"
        raise ScheduleError(text) from error.__cause__  # a bug in the user's function shows where


def _find_one(schedule: Schedule, collective: Collective, slots: int) -> None:
    """Verifies it for the least number of ranks that it does not refuse. Raises what it says where it refuses all."""
    if not any(_serves(schedule, collective, n, slots, True) for n in range(5, _MOST_TRIED + 1)):
        _serves(schedule, collective, 1, slots, False)


def _serves(schedule: Schedule, collective: Collective, ranks: int, slots: int, may_refuse: bool) -> bool:
    """Whether there are programs, which are then right. may_refuse: that every rank's function refuses is no error."""
    for root in schedules.roots(collective, ranks):
        programs: list[Program] = []
        said: ScheduleError | None = None
        for rank in range(ranks):
            try:
                programs.append(schedule.build(Problem(collective, ranks, rank, root, slots)))
            except GeneratorError:
                raise
            except ScheduleError as error:
                said = error
        if said is not None:
            if programs or not may_refuse:
                raise said
            return False
        verify(programs)
    return True
