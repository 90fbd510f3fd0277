"""The ranks of a job as text: where each is, the tree of levels, which connection each pair would use and why."""

from __future__ import annotations

from ringcomm.placing import nics
from ringcomm.ranges import show_ranges
from ringcomm.reach import Connection, connection, grouped
from ringcomm.tools.topo_machine import indented, table
from ringcomm.topology import LEVELS, Topology

MATRIX_RANKS = 32
"""Up to so many ranks the pairs are shown as a matrix; the reasons below it are shown at any number."""
REASONS = 40
CELLS = (
    "X the rank itself; shm: proved, the reader opened its memory; shm?: not proved; tcp: a socket; "
    "verbs: RDMA, not proved; -: no connection"
)


def rank_lines(topology: Topology, across: str, net: str) -> list[str]:
    """across: the setting `connections.across`; net: the setting `net`."""
    lines = [f"shape: {topology.describe()}", *indented(_tree(topology)), ""]
    lines += [*table([_HEAD, *(_row(topology, rank) for rank in range(len(topology.ranks)))]), ""]
    if len(topology.ranks) <= MATRIX_RANKS:
        lines += ["reader \\ writer", *table(_matrix(topology, across, net)), f"({CELLS})", ""]
    return [*lines, "why:", *indented(_reasons(topology, across, net)), ""]


_HEAD = ["rank", "node", "host", "pid", "cores", "socket", "NUMA", "complex", "rail"]


def _row(topology: Topology, number: int) -> list[str]:
    rank = topology.ranks[number]
    machine = None if rank.machine is None else topology.machines[rank.machine]
    rail = "-" if rank.rail is None else str(rank.rail)
    if machine is not None and rank.rail is not None and rank.rail < len(nics(machine)):
        rail += f" ({nics(machine)[rank.rail].name})"
    numbers = ["-" if n is None else str(n) for n in (rank.pid, rank.socket, rank.numa, rank.complex)]
    host = machine.hostname if machine else "-"
    return [str(number), str(rank.node), host, numbers[0], rank.cores or "-", *numbers[1:], rail]


def _tree(topology: Topology) -> list[str]:
    """One line per node, and below it per group of each level that splits the one above."""
    return _below(topology, tuple(range(len(topology.ranks))), 0, 0)


def _below(topology: Topology, ranks: tuple[int, ...], level: int, depth: int) -> list[str]:
    if level == len(LEVELS):
        return []
    name = LEVELS[level]
    inside = [group for group in topology.groups(name) if set(group) <= set(ranks)]
    shown = name == "node" or len(inside) > 1
    lines = []
    for group in inside:
        if shown:
            lines.append(f"{'  ' * depth}{_place(topology, group[0], name)}: ranks {show_ranges(group)}")
        lines += _below(topology, group, level + 1, depth + shown)
    return lines


def _place(topology: Topology, rank: int, level: str) -> str:
    word = {"numa": "NUMA node", "complex": "core complex"}.get(level, level)
    number = getattr(topology.ranks[rank], level)
    return f"several {word}{'es' if level == 'complex' else 's'}" if number is None else f"{word} {number}"


def _matrix(topology: Topology, across: str, net: str) -> list[list[str]]:
    ranks = range(len(topology.ranks))
    rows = [["", *map(str, ranks)]]
    return rows + [[str(a), *(_cell(connection(topology, a, b, across, net)) for b in ranks)] for a in ranks]


def _cell(found: Connection) -> str:
    if found.kind == "self":
        return "X"
    return "-" if found.kind is None else found.kind + "?" * (found.kind == "shm" and not found.proved)


def _reasons(topology: Topology, across: str, net: str) -> list[str]:
    """Each reason once, with the pairs it holds for."""
    lines = [
        f"{_pairs(pairs)}: {found.kind + ': ' if found.kind else ''}{found.why}"
        for found, pairs in grouped(topology, across, net).items()
    ]
    more = len(lines) - REASONS
    return [*lines[:REASONS], f"... and {more} more reasons; --json has all"] if more > 0 else lines


def _pairs(writers: dict[int, list[int]]) -> str:
    """`among 0-3; 4-5 from 0-3`: sets whose ranks all read each other first, then readers with the same writers."""
    closed: dict[tuple[int, ...], list[int]] = {}
    for reader, those in writers.items():
        closed.setdefault(tuple(sorted((reader, *those))), []).append(reader)
    sets = [readers for members, readers in closed.items() if list(members) == readers]
    inside = {reader for readers in sets for reader in readers}
    joined: dict[tuple[int, ...], list[int]] = {}
    for reader, those in writers.items():
        if reader not in inside:
            joined.setdefault(tuple(those), []).append(reader)
    texts = [f"among {show_ranges(readers)}" for readers in sets]
    return "; ".join([*texts, *(f"{show_ranges(r)} from {show_ranges(those)}" for those, r in joined.items())])
