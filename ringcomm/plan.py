"""What a group is made with, as far as configuration, size and nodes decide it: layout, decision table, programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import ringcomm
from ringcomm import policy
from ringcomm.config import Config
from ringcomm.topology import Place

MESSAGE_SLOT = 64 << 10
"""Bytes of a point-to-point slot, and the largest message that is sent before its receive is posted."""
_PAGE = 4096

Row = tuple[int, "int | None", str, int, int, str, bool]
"""A rule as the data plane takes it: see `rules` in _C.pyi."""


@dataclass(frozen=True)
class Plan:
    """The layout of every rank's memory is fixed before the ranks know how many nodes they are on; the rules follow."""

    settings: Config
    ranks: int
    channels: int
    slots: Mapping[str, int]
    """Capacity in bytes of a slot, by kind of connection."""
    digest: Mapping[str, str]
    _rows: dict[tuple[Place, ...], list[Row]] = field(default_factory=dict)

    def layout(self) -> dict[str, int]:
        """The arguments of the extension's `seed` that all ranks have alike."""
        slots = self.settings.memory.slots
        return {"ranks": self.ranks, "channels": self.channels, "slots": slots, "message": MESSAGE_SLOT, **self.slots}

    def rules(self, nodes: tuple[Place, ...]) -> list[Row]:
        """The decision table of a group whose rank i is at nodes[i]. ConfigError where the policy has a hole there.

        What a rule runs is a name: that of a hierarchical schedule holds the group's nodes, so `build` knows them.
        """
        if nodes not in self._rows:
            if len(self._rows) >= 64:
                self._rows.clear()
            cap = min(self.slots.values()) if self.channels > 1 else max(self.slots.values())
            numbers = _collective_numbers()
            self._rows[nodes] = [
                (numbers[r.collective], r.max_bytes, r.schedule, min(r.slot, cap), r.channels, r.source, r.wide)
                for r in policy.table(self.settings, self.ranks, nodes)
            ]
        return self._rows[nodes]


# A program makes many groups from one configuration; its object is kept in the value, so its id stands for one only.
_plans: dict[tuple[int, int, tuple[Place, ...] | None], Plan] = {}


def of_group(settings: Config, ranks: int, nodes: tuple[Place, ...] | None, extension: Any) -> Plan:
    """nodes: each rank's declared place; None where that is found out when the group is made."""
    key = (id(settings), ranks, nodes)
    if key not in _plans:
        if len(_plans) >= 64:
            _plans.clear()
        _prove_user_schedules(settings, ranks)
        channels = policy.most_channels(settings, ranks, nodes)
        _plans[key] = Plan(settings, ranks, channels, _slots(settings, ranks, channels), _digest(settings, extension))
    return _plans[key]


def _slots(settings: Config, ranks: int, channels: int) -> dict[str, int]:
    """Channels share the memory that one channel would have."""
    capacity = settings.memory.capacity
    return {kind: capacity(ranks, kind) // channels // _PAGE * _PAGE for kind in ("fan_out", "pair")}


def _digest(settings: Config, extension: Any) -> dict[str, str]:
    """What must be alike on all ranks: settings, versions, and what the extension was compiled for."""
    numbers = extension.layout_numbers()
    versions = {"version of ringcomm": ringcomm.__version__, "version of torch": str(torch.__version__).split("+")[0]}
    return settings.digest_parts() | versions | {"program format": str(numbers["program_version"])}


def _prove_user_schedules(settings: Config, ranks: int) -> None:
    """What the policy may run in a group of this size; what it never runs there may be without a program for it."""
    if not settings.schedules:
        return
    from ringcomm import schedules
    from ringcomm.program.ops import ScheduleError
    from ringcomm.schedules.user import keep

    names = {name for file in settings.schedules for name in schedules.load_user(file)}
    for collective, rules in settings.policy.items():
        for rule in rules:
            if rule.schedule not in names or not policy.matches_ranks(rule, ranks):
                continue
            carried = "all_reduce" if collective == "barrier" else collective
            try:
                for root in schedules.roots(carried, ranks):
                    schedules.verify_schedule(carried, rule.schedule, ranks, root, settings.memory.slots)
            except ScheduleError as error:
                raise ScheduleError(
                    f"{rule.where}: policy.{collective} chooses {rule.schedule!r} in a group of {ranks} ranks: {error}"
                ) from None
    keep(names)


@lru_cache(maxsize=1)
def _collective_numbers() -> dict[str, int]:
    from ringcomm.program.ops import Collective

    return {c.name: int(c) for c in Collective}


def build(
    collective: str, schedule: str, ranks: int, rank: int, root: int, slots: int
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The packed program; called by the data plane the first time a (collective, schedule, root) is used."""
    packed: np.ndarray[Any, np.dtype[np.int32]] = _packed(
        collective, schedule, ranks, rank, None if root < 0 else root, slots
    )
    return packed


@lru_cache(maxsize=1024)
def _packed(collective: str, schedule: str, ranks: int, rank: int, root: int | None, slots: int) -> Any:
    from ringcomm import schedules
    from ringcomm.program.pack import pack

    return pack(schedules.build(collective, schedule, ranks, rank, root, slots))
