"""The kind of a setting that lists the ranks of each node. Knows no key; places come with the located values."""

from __future__ import annotations

from ringcomm.config.located import Located
from ringcomm.errors import ConfigError
from ringcomm.ranges import parse_ranges, show_ranges

Nodes = tuple[tuple[int, ...], ...]


class NodesKind:
    """A list of nodes, each a list of ranks or a text such as `0-3,8`; every rank from 0 on exactly one node."""

    @property
    def allowed(self) -> str:
        return "a list of nodes, each a list of ranks or a text such as 0-3,8; every rank from 0 on exactly one node"

    def parse(self, raw: object) -> Nodes:
        """Nodes in order of their lowest rank. ConfigError with the place of the entry at fault, else ValueError."""
        if not isinstance(raw, list) or not raw:
            raise ValueError
        owners: dict[int, str] = {}
        nodes = []
        for entry in raw:
            ranks = _ranks(entry)
            for rank in ranks:
                if rank in owners:
                    raise ConfigError(f"{entry.where}: rank {rank} is on two nodes (first at {owners[rank]})")
                owners[rank] = entry.where
            nodes.append(ranks)
        missing = set(range(max(owners) + 1)) - set(owners)
        if missing:
            raise ConfigError(
                f"{raw[0].where}: nodes name rank {max(owners)} but not rank {show_ranges(missing)}; "
                "every rank from 0 must be on exactly one node"
            )
        return tuple(sorted(nodes))

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return "[" + "; ".join(show_ranges(node) for node in value) + "]"


def _ranks(entry: Located) -> tuple[int, ...]:
    """The ranks of one node."""
    ranks = _listed(entry.value, entry.where) if isinstance(entry.value, list) else _ranged(entry)
    if not ranks:
        raise ConfigError(f"{entry.where}: a node has no ranks")
    twice = [rank for rank in ranks if ranks.count(rank) > 1]
    if twice:
        raise ConfigError(f"{entry.where}: a node names rank {twice[0]} twice")
    return tuple(sorted(ranks))


def _listed(items: list[Located], where: str) -> list[int]:
    for item in items:
        if type(item.value) is not int or item.value < 0:
            raise ConfigError(f"{where}: a node lists {item.value!r}; allowed are whole numbers from 0")
    return [int(str(item.value)) for item in items]


def _ranged(entry: Located) -> list[int]:
    try:
        return list(parse_ranges(str(entry.value)))
    except ValueError as error:
        raise ConfigError(f"{entry.where}: a node is a list of ranks or a text such as 0-3,8: {error}") from None
