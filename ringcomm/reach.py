"""Which connection a pair of ranks would use, and why, from what a Topology holds. Pure; connects nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ringcomm.facts import Machine
from ringcomm.topology import Topology, Way


@dataclass(frozen=True)
class Connection:
    """The answer for an ordered pair."""

    kind: str | None
    """`self`, `shm`, `tcp`, `verbs`, or None: no connection."""
    why: str
    proved: bool = False
    """Whether the reader has opened the other's memory, which alone proves `shm`. Of `tcp` a way is known, or none; of
    `verbs` an active port at both ends: whether the library can use it shows when a group is made."""


def connection(topology: Topology, reader: int, writer: int, across: str = "auto", net: str = "auto") -> Connection:
    """How `reader` would receive from `writer`. across: the setting `connections.across`; net: the setting `net`."""
    if reader == writer:
        return Connection("self", "the rank itself", True)
    mine, other = topology.ranks[reader], topology.ranks[writer]
    if across == "tcp" and mine.node != other.node and mine.machine == other.machine:
        kind = "verbs" if net == "verbs" else "tcp"
        return Connection(kind, "on different nodes by declaration, and connections.across is tcp")
    opened = topology.opened[reader]
    if opened is not None:
        if writer in opened:
            return Connection("shm", "its memory was opened" + _declared(topology, reader, writer), True)
        return _unopened(topology, reader, writer, net)
    if mine.machine is None or other.machine is None:
        return Connection(None, "nothing is known of the hosts: the topology was only declared")
    if mine.machine == other.machine:
        return Connection("shm", "same kernel and network namespace, not proved" + _declared(topology, reader, writer))
    return _apart(topology, mine.machine, other.machine, net)


def grouped(topology: Topology, across: str = "auto", net: str = "auto") -> dict[Connection, dict[int, list[int]]]:
    """Every distinct answer with the pairs it holds for: reader -> its writers. The ranks themselves are left out."""
    found: dict[Connection, dict[int, list[int]]] = {}
    for reader in range(len(topology.ranks)):
        for writer in range(len(topology.ranks)):
            if reader != writer:
                answer = connection(topology, reader, writer, across, net)
                found.setdefault(answer, {}).setdefault(reader, []).append(writer)
    return found


def _declared(topology: Topology, a: int, b: int) -> str:
    """Shape and reach are two things: ranks of two declared nodes may well reach each other's memory."""
    return "" if topology.ranks[a].node == topology.ranks[b].node else "; on different nodes by declaration only"


def _unopened(topology: Topology, reader: int, writer: int, net: str) -> Connection:
    mine, other = topology.ranks[reader].machine, topology.ranks[writer].machine
    if mine is None or other is None or mine == other:
        return Connection(
            None,
            "no connection: its memory could not be opened, though both are in one network namespace of one kernel",
        )
    return _apart(topology, mine, other, net)


def _apart(topology: Topology, reader: int, writer: int, net: str) -> Connection:
    """Between machines. Who writes dials, so the way that counts leads from the writer's machine to the reader's."""
    text = difference(topology.machines[reader], topology.machines[writer])
    ways = [way for way in topology.ways if (way.source, way.target) == (writer, reader)]
    if not ways:
        return Connection("tcp", f"{text}; the way was not looked for")
    way = ways[0]
    if not way.interface:
        return Connection(None, f"no connection: {text}; {_no_way(way)}")
    kind, why = _wire(topology, reader, writer, net)
    met = "met over" if kind == "verbs" else "packets leave by"
    return Connection(kind, f"{text}; {why}{met} {way.interface} ({way.from_address} to {way.address})")


def _wire(topology: Topology, reader: int, writer: int, net: str) -> tuple[str, str]:
    """(`tcp` or `verbs`, why, to go before the way). A group takes verbs where all its machines have a port."""
    if net == "tcp":
        return "tcp", "net is tcp; "
    used = sorted({rank.machine for rank in topology.ranks if rank.machine is not None})
    without = [topology.machines[n].hostname for n in used if not _ports(topology.machines[n])]
    if not without:
        ports = [_ports(topology.machines[n])[0] for n in (writer, reader)]
        return "verbs", f"RDMA by {ports[0]} to {ports[1]}, not proved; "
    if net == "verbs":
        return "verbs", f"net is verbs, but {', '.join(without)} has no active RDMA port; "
    return "tcp", f"no RDMA: {', '.join(without)} has no active port; " if len(without) < len(used) else ""


def _ports(machine: Machine) -> list[str]:
    """Active ports of RDMA devices."""
    return [f"{d.name} port {port.number}" for d in machine.rdma for port in d.ports if port.state == "ACTIVE"]


def difference(one: Machine, two: Machine) -> str:
    """What tells two machines apart, in words."""
    if one.boot_id and one.boot_id == two.boot_id:
        return f"one kernel, two network namespaces ({one.network}, {two.network})"
    if one.hostname != two.hostname:
        return f"different hosts ({one.hostname}, {two.hostname})"
    return f"different hosts (both named {one.hostname}; boot ids {one.boot_id[:8]}, {two.boot_id[:8]})"


def _no_way(way: Way) -> str:
    return f"the writer has no way to the reader: {way.why_not or 'which has no address to offer'}"
