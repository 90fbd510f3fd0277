"""Which ranks of a group share memory: the node numbers that go into the cards, and what policy rules see. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ringcomm.config import Config, declared
from ringcomm.topology import Place


def numbers(settings: Config, members: Sequence[int], cards: Sequence[Mapping[str, Any]]) -> list[int]:
    """The node of each rank of a group, numbered by lowest rank.

    members: the ranks by their numbers in the job; cards: what the ranks said of themselves (`machine`). Ranks of one
    machine are on one node, but where `connections.across` is tcp only those that are declared to be.
    """
    shape = declared.of_group(settings, members) if settings.connections.across == "tcp" else None
    apart = [rank.node for rank in shape.ranks] if shape is not None else [0] * len(members)
    return _numbered([(card["machine"], node) for card, node in zip(cards, apart, strict=True)])


def places(settings: Config, members: Sequence[int], cards: Sequence[Mapping[str, Any]]) -> tuple[Place, ...]:
    """Where policy rules see each rank: on the declared nodes, else on the machines the ranks turned out to be on."""
    said = declared.nodes_of(settings, members)
    return said if said is not None else tuple(_numbered([card["machine"] for card in cards]))


def _numbered(marks: Sequence[Hashable]) -> list[int]:
    """Equal marks get one number, in the order in which they come."""
    order = {mark: number for number, mark in enumerate(dict.fromkeys(marks))}
    return [order[mark] for mark in marks]
