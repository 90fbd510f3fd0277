"""Reads what `topology` declares, and answers for a group: which of its ranks are on which node by declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ringcomm.config.schema import Config
from ringcomm.config.sections import Shape
from ringcomm.errors import ConfigError
from ringcomm.topology import Place, Rank, Topology


def declared(shape: Shape, sources: Mapping[str, str], base: Path | None) -> Topology | None:
    """The topology that `nodes` or `file` declares; None for `ranks_per_node`, which needs a group, and for neither.

    base: the folder that `file` is relative to, None for a dict. Raises ConfigError where two keys are given, or the
    file cannot be read.
    """
    given = [name for name in ("nodes", "ranks_per_node", "file") if getattr(shape, name) is not None]
    if len(given) > 1:
        one, two = (f"topology.{name} ({sources[f'topology.{name}']})" for name in given[:2])
        raise ConfigError(f"{one} and {two} exclude each other; each says alone which rank is on which node")
    if shape.nodes is not None:
        return Topology.of_nodes(shape.nodes)
    return _loaded(shape.file, sources["topology.file"], base) if shape.file is not None else None


def of_group(config: Config, members: Sequence[int]) -> Topology | None:
    """The declared topology of a group; members: its ranks in order, by their numbers in the job. None: undeclared.

    Raises ConfigError where the declaration does not know a member.
    """
    each = config.topology.ranks_per_node
    if each is not None:
        return Topology(tuple(Rank(node=member // each) for member in members))
    if config.declared is None:
        return None
    _check_members(config, config.declared, members)
    return config.declared.restricted(members)


def nodes_of(config: Config, members: Sequence[int]) -> tuple[Place, ...] | None:
    """The declared place of each member, the number of its node or more (topology.Place); None: nothing is declared."""
    each = config.topology.ranks_per_node
    if each is not None:
        return tuple(member // each for member in members)
    if config.declared is None:
        return None
    _check_members(config, config.declared, members)
    places = config.declared.places
    return tuple(places[member] for member in members)


def _check_members(config: Config, declared: Topology, members: Sequence[int]) -> None:
    known = len(declared.ranks)
    if max(members) >= known:
        name = "nodes" if config.topology.nodes is not None else "file"
        raise ConfigError(
            f"{config.sources[f'topology.{name}']}: topology.{name} declares {known} ranks (0 to {known - 1}), "
            f"but this group has rank {max(members)}; declare all ranks of the job"
        )


def log_line(config: Config, members: Sequence[int]) -> str:
    """For rank 0 at INFO; '' where nothing is declared."""
    shape = of_group(config, members)
    if shape is None:
        return ""
    name = next(n for n in ("nodes", "ranks_per_node", "file") if getattr(config.topology, n) is not None)
    return f"topology: {shape.describe()}, declared by {config.sources[f'topology.{name}']}"


def _loaded(file: str, where: str, base: Path | None) -> Topology:
    path = Path(file)
    if where.startswith("environment "):
        base = Path()
    if base is None and not path.is_absolute():
        raise ConfigError(f"{where}: topology.file is {file!r}; it must be absolute, since a dict lies in no folder")
    try:
        found = Topology.load((base or Path()) / path)
    except ValueError as error:
        raise ConfigError(f"{where}: topology.file: {error}") from None
    if not found.ranks:
        raise ConfigError(f"{where}: topology.file: {file} holds no ranks; save it from a job, or write them in")
    return found
