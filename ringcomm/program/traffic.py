"""How much of a message the programs of a plan send from node to node. Counts bytes; knows no time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction

from ringcomm.program.ops import CUT, ConnectionKind, Program, Ref


def sent_across(programs: Sequence[Program], nodes: Sequence[Hashable]) -> list[Fraction]:
    """For each rank how much it sends to ranks of other nodes, in messages (chunks taken as equal).

    nodes: the number of each rank's node. A fan-out slot counts once for each reader on another node, as on wires.
    """
    return [Fraction(sum(_slots(program, nodes)), _chunks(program)) for program in programs]


def _slots(program: Program, nodes: Sequence[Hashable]) -> list[int]:
    """For each step how many of the ranks it sends to are on other nodes."""
    home = nodes[program.rank]
    elsewhere = sum(node != home for node in nodes)

    def readers(sender: Ref) -> int:
        connection = program.senders[sender.index]
        return elsewhere if connection.kind == ConnectionKind.fan_out else int(nodes[connection.peer] != home)

    return [sum(map(readers, step.senders)) for step in program.steps]


def _chunks(program: Program) -> int:
    """How many chunks make up the message (docs/configuration.md, max_bytes)."""
    return max(program.nchunks_in, program.nchunks_out) if program.collective in CUT else program.ranks
