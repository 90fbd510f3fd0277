"""Where the ranks of a group are, and what follows from it. Immutable values and pure functions; `discover` probes."""

from __future__ import annotations

from ringcomm.topology.shape import LEVELS, Place, Rank, Topology, Way

__all__ = ["LEVELS", "Place", "Rank", "Topology", "Way"]
