"""The shape of a group: which rank is on which node. A value with pure questions; probes nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Nodes of a group, each a tuple of its group ranks in rising order."""

    nodes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = [rank for node in self.nodes for rank in node]
        if (
            not ranks
            or sorted(ranks) != list(range(len(ranks)))
            or any(list(n) != sorted(n) or not n for n in self.nodes)
        ):
            raise ValueError(f"nodes is {self.nodes}; each rank from 0 must be on exactly one node, in rising order")

    @classmethod
    def single_node(cls, ranks: int) -> Topology:
        """All ranks on one node, the only shape there is until connections between nodes exist."""
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}; it must be at least 1")
        return cls((tuple(range(ranks)),))

    @property
    def ranks(self) -> int:
        return sum(len(node) for node in self.nodes)

    def node_of(self, rank: int) -> int:
        """Index of the node `rank` is on. Raises ValueError for a rank outside the group."""
        for index, node in enumerate(self.nodes):
            if rank in node:
                return index
        raise ValueError(f"rank is {rank}; allowed are 0 to {self.ranks - 1}")
