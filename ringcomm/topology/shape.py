"""The shape of a group: where each rank is. An immutable value with pure questions; probes nothing.

    pod 0                              LEVELS, outermost first; a rank's place is a path from the root.
    ├── node 0                         The ranks that agree on the path down to a level are one group of it, so
    │   ├── socket 0                   the groups of a level lie in those of the level above by construction.
    │   │   ├── numa 0: ranks 0, 1     A rank whose cores span several parts of a level has None there.
    │   │   └── numa 1: ranks 2, 3
    │   └── socket 1 ...               A rail is no level: it joins one rank of each node (the same NIC plane)
    └── node 1 ...                     and so cuts across the tree.

Two things are kept apart. The shape (node, pod, ...) may be declared, whatever the hardware; policy and schedules
follow it. Which connection two ranks can use (`machine`, `opened`) is a fact that was found; `reach` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ringcomm.plain import from_plain, to_plain
from ringcomm.ranges import parse_ranges, show_ranges
from ringcomm.topology.facts import Machine

LEVELS = ("pod", "node", "socket", "numa", "complex")
Place = int | tuple[int, ...]
"""Where a rank is, for policy and schedules: the number of its node, or its numbers on all of LEVELS."""
FORMAT, VERSION = "ringcomm topology", 1


@dataclass(frozen=True)
class Rank:
    """Where one rank is, and what it could open."""

    node: int
    pod: int = 0
    socket: int | None = None
    numa: int | None = None
    complex: int | None = None
    rail: int | None = None
    """Number of the NIC plane it uses across nodes; None without a NIC."""
    machine: int | None = None
    """Index into `Topology.machines`; None where nothing is known of its host."""
    pid: int | None = None
    cores: str = ""
    """CPUs it may run on, such as 0-3."""
    opened: str | None = None
    """Ranks whose shared memory it has opened, such as 0-3; None: nobody tried."""


@dataclass(frozen=True)
class Way:
    """How one machine's kernel would send to another."""

    source: int
    target: int
    """Indices into `Topology.machines`."""
    address: str = ""
    """Of the target; '' where it offers none."""
    from_address: str = ""
    interface: str = ""
    """'' where there is no way."""
    why_not: str = ""


@dataclass(frozen=True)
class Topology:
    """Ranks of a group in order, the machines they run on, and the ways between those."""

    ranks: tuple[Rank, ...] = ()
    machines: tuple[Machine, ...] = ()
    ways: tuple[Way, ...] = ()

    def __post_init__(self) -> None:
        pods: dict[int, int] = {}
        for number, rank in enumerate(self.ranks):
            if rank.node < 0:
                raise ValueError(f"ranks[{number}].node is {rank.node}; it must be at least 0")
            if rank.machine is not None and not 0 <= rank.machine < len(self.machines):
                raise ValueError(f"ranks[{number}].machine is {rank.machine}; there are {len(self.machines)} machines")
            if pods.setdefault(rank.node, rank.pod) != rank.pod:
                both = f"{pods[rank.node]} and {rank.pod}"
                raise ValueError(f"ranks[{number}].pod is {rank.pod}; node {rank.node} would be in the pods {both}")
            for name, text in (("cores", rank.cores), ("opened", rank.opened or "")):
                try:
                    parse_ranges(text)
                except ValueError as error:
                    raise ValueError(f"ranks[{number}].{name}: {error}") from None

    @classmethod
    def of_nodes(cls, nodes: Iterable[Iterable[int]]) -> Topology:
        """A declared shape: each rank from 0 on exactly one node. Nodes are numbered by their lowest rank."""
        lists = sorted(sorted(node) for node in nodes)
        owner = {rank: index for index, node in enumerate(lists) for rank in node}
        count = sum(len(node) for node in lists)
        if not count or not all(lists) or set(owner) != set(range(count)):
            raise ValueError(f"nodes is {lists}; each rank from 0 must be on exactly one node, and no node be empty")
        return cls(tuple(Rank(node=owner[rank]) for rank in range(count)))

    @classmethod
    def single_node(cls, ranks: int) -> Topology:
        """All ranks on one node."""
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}; it must be at least 1")
        return cls.of_nodes([range(ranks)])

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Each rank's place; node numbers where no other level is known. -1 stands for None."""
        paths = [[getattr(rank, name) for name in LEVELS] for rank in self.ranks]
        if all(path == [0, rank.node, None, None, None] for path, rank in zip(paths, self.ranks, strict=True)):
            return tuple(rank.node for rank in self.ranks)
        return tuple(tuple(-1 if number is None else number for number in path) for path in paths)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node, rising; nodes in order of their lowest rank."""
        return self.groups("node")

    @cached_property
    def opened(self) -> tuple[frozenset[int] | None, ...]:
        """For each rank those whose memory it has opened; None: it did not try."""
        return tuple(None if r.opened is None else frozenset(parse_ranges(r.opened)) for r in self.ranks)

    def node_of(self, rank: int) -> int:
        """Index into `nodes` of the node `rank` is on. Raises ValueError for a rank outside the group."""
        for index, node in enumerate(self.nodes):
            if rank in node:
                return index
        raise ValueError(f"rank is {rank}; allowed are 0 to {len(self.ranks) - 1}")

    def groups(self, level: str) -> tuple[tuple[int, ...], ...]:
        """The groups of a level, each its ranks rising, in order of their lowest rank."""
        if level not in LEVELS:
            raise ValueError(f"level is {level!r}; allowed are {', '.join(LEVELS)}")
        path = LEVELS[: LEVELS.index(level) + 1]
        found: dict[tuple[Any, ...], list[int]] = {}
        for number, rank in enumerate(self.ranks):
            found.setdefault(tuple(getattr(rank, name) for name in path), []).append(number)
        return tuple(tuple(group) for group in found.values())

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """The levels that split a group of the level above them; none where all ranks are at one place."""
        parted = [(tuple(range(len(self.ranks))),), *(self.groups(level) for level in LEVELS)]
        return tuple(level for level, above, here in zip(LEVELS, parted, parted[1:], strict=False) if here != above)

    @property
    def contiguous(self) -> bool:
        """Whether each node holds consecutive ranks."""
        return all(node[-1] - node[0] == len(node) - 1 for node in self.nodes)

    @property
    def even(self) -> bool:
        """Whether all nodes hold the same number of ranks."""
        return len({len(node) for node in self.nodes}) <= 1

    @property
    def rails(self) -> dict[int, tuple[int, ...]]:
        """Rail -> its ranks, for the ranks that have one."""
        numbers = sorted({rank.rail for rank in self.ranks if rank.rail is not None})
        return {rail: tuple(i for i, rank in enumerate(self.ranks) if rank.rail == rail) for rail in numbers}

    def restricted(self, members: Sequence[int]) -> Topology:
        """The topology of a subgroup; members: its ranks, in the order of their new numbers, by their numbers here."""
        for member in members:
            if not 0 <= member < len(self.ranks):
                raise ValueError(f"rank is {member}; allowed are 0 to {len(self.ranks) - 1}")
        new = {old: number for number, old in enumerate(members)}
        return replace(self, ranks=tuple(_renumbered(self.ranks[old], new) for old in members))

    def shape(self) -> str:
        """What ranks must agree on: every rank's place and rail, as short text (a sha)."""
        places = [{name: getattr(rank, name) for name in (*LEVELS, "rail")} for rank in self.ranks]
        return hashlib.sha256(json.dumps(places).encode()).hexdigest()[:12]

    def describe(self) -> str:
        """`4 ranks on 2 nodes of 2`, `7 ranks on 3 uneven nodes of 3, 3, 1, not contiguous`."""
        sizes = [len(node) for node in self.nodes]
        text = f"{len(self.ranks)} rank{'s' * (len(self.ranks) != 1)} on {len(sizes)} "
        text += "" if self.even else "uneven "
        text += f"node{'s' * (len(sizes) != 1)} of {sizes[0] if self.even else ', '.join(map(str, sizes))}"
        return text + ("" if self.contiguous else ", not contiguous")

    def to_json(self) -> dict[str, Any]:
        """For a file: see `from_json`."""
        return {"format": FORMAT, "version": VERSION, **to_plain(self)}

    @classmethod
    def from_json(cls, data: object, where: str) -> Topology:
        """The value of a file's JSON. Raises ValueError naming `where`, the place in it, the value, what is allowed."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f'{where} is no topology: it has no "format": "{FORMAT}"')
        if data.get("version") != VERSION:
            raise ValueError(f"{where}: version is {data.get('version')!r}; this release reads {VERSION}")
        values = {name: value for name, value in data.items() if name not in ("format", "version")}
        try:
            return from_plain(cls, values, where)
        except ValueError as error:
            raise ValueError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path, shown: str = "") -> Topology:
        """Reads what `save` wrote. Raises ValueError naming the file (as `shown`) and what is wrong with it."""
        where = shown or str(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{where} cannot be read: {error}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}:{error.lineno} is not JSON: {error.msg}") from None
        return cls.from_json(data, where)


def _renumbered(rank: Rank, new: dict[int, int]) -> Rank:
    if rank.opened is None:
        return rank
    return replace(rank, opened=show_ranges(new[old] for old in parse_ranges(rank.opened) if old in new))
