"""What a schedule is to the registry: a name, the collectives it serves and the slots it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ringcomm.program.ops import WITH_PROGRAM, Collective, Problem, Program, ScheduleError

Generator = Callable[[Problem], Program]


class GeneratorError(ScheduleError):
    """A schedule's function raised something else than a ScheduleError: a bug in it, not a refusal."""


def collective_named(name: str | Collective) -> Collective:
    """The Collective of that name. Raises ScheduleError listing the names otherwise."""
    if isinstance(name, Collective):
        return name
    allowed = [collective.name for collective in sorted(WITH_PROGRAM)]
    if name not in allowed:
        raise ScheduleError(f"collective={name!r}: no program has it; allowed: {', '.join(allowed)}")
    return Collective[name]


ANY = sys.maxsize


@dataclass(frozen=True)
class Order:
    """How a schedule combines the contributions of a reduction (docs/numerics.md), up to which number of ranks.

    tree: by the tree over group ranks. one_step: all in one step, so that 16-bit floats are rounded once. ANY: always.
    """

    tree: int = 1
    one_step: int = 1


@dataclass(frozen=True)
class Schedule:
    """A family of generators under one name. min_slots: fewer slots per FIFO are refused.

    order: what a built-in schedule states of the collectives that reduce (a test compares it with the programs); for a
    user's schedule it is found from the programs themselves, whatever is stated.
    """

    name: str
    generators: Mapping[str | Collective, Generator]
    min_slots: int = 1
    order: Mapping[str, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.partition("(")[0].isidentifier():  # what follows is what hierarchical is made of
            raise ScheduleError(f"name={self.name!r}: a schedule's name is letters, digits and _")
        if not self.generators:
            raise ScheduleError(f"schedule {self.name}: generators is empty")
        named = {collective_named(key): generator for key, generator in self.generators.items()}
        object.__setattr__(self, "generators", named)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(sorted(collective_named(key) for key in self.generators))

    def build(self, problem: Problem) -> Program:
        """One rank's program. Raises ScheduleError when the schedule does not serve the problem, GeneratorError when
        its function raises anything else."""
        if problem.collective not in self.generators:
            allowed = ", ".join(c.name for c in self.collectives)
            raise ScheduleError(f"schedule {self.name} does not serve {problem.collective.name}; it serves {allowed}")
        if problem.ranks > 1 and problem.slots < self.min_slots:
            raise ScheduleError(f"slots={problem.slots}: schedule {self.name} needs at least {self.min_slots}")
        try:
            program = self.generators[problem.collective](problem)
        except ScheduleError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise GeneratorError(f"schedule {self.name} raised {said}, asked for {problem}") from error
        self._check_is_for(program, problem)
        return program

    def _check_is_for(self, program: Program, problem: Problem) -> None:
        if not isinstance(program, Program):
            raise ScheduleError(f"schedule {self.name} returned {type(program).__name__}, not a Program")
        p = program
        built = Problem(p.collective, p.ranks, p.rank, p.root, p.slots)
        if built != problem:
            raise ScheduleError(f"schedule {self.name} returned a program for {built}, asked for {problem}")
