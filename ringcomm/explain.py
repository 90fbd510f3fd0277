"""For people: which rule of the policy carries a message and why not the others, and what `numerics` makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ringcomm import policy
from ringcomm.config import COLLECTIVES, Config, PolicyRule
from ringcomm.config.values import show_bytes
from ringcomm.numerics import is_eligible
from ringcomm.topology import Place

MOST_RANKS = 64
"""Costs are counted over the programs of all ranks; beyond this they take long to build."""


def explain(config: Config, collective: str, nbytes: int, ranks: int, nodes: Sequence[Place] | None = None) -> str:
    """Each rule of the collective in order, whether it matches this message and group, and which wins.

    nodes: the place of each rank (policy.table); None: one node. Raises ValueError for an unknown collective or
    negative bytes, ConfigError where the policy has a hole.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective is {collective!r}; allowed are {', '.join(COLLECTIVES)}")
    if nbytes < 0:
        raise ValueError(f"bytes is {nbytes}; it must be at least 0")
    placed = tuple(nodes) if nodes is not None else (0,) * ranks
    count = policy.count_nodes(placed)
    where = f"{ranks} ranks on {count} node{'s' * (count > 1)}"
    lines = [f"{collective} of {show_bytes(nbytes)} in a group of {where}, configuration: {config.origin}"]
    won = False
    for rule in config.policy[collective]:
        verdict = "not reached" if won else _verdict(config, collective, rule, nbytes, placed)
        won = won or verdict == "chosen"
        lines.append(f"  {rule.where:<20} {rule.text():<64} {verdict}")
    chosen = policy.select(policy.table(config, ranks, placed), collective, nbytes)
    pieces = -(-nbytes // chosen.slot)
    channels = f" over {chosen.channels} channels" if chosen.channels > 1 else ""
    lines.append(
        f"-> {chosen.schedule}{channels}, slots filled to {show_bytes(chosen.slot)}: the whole message would fill "
        f"{pieces}; by the rule at {chosen.source}"
    )
    return "\n".join([*lines, *_crossing(config, chosen, nbytes, placed), *_costs(config, chosen, nbytes, placed)])


def _verdict(config: Config, collective: str, rule: PolicyRule, nbytes: int, nodes: tuple[Place, ...]) -> str:
    ranks = len(nodes)
    if not policy.matches(rule, ranks, policy.count_nodes(nodes)):
        return "other groups"
    if rule.max_bytes is not None and nbytes > rule.max_bytes.at(ranks):
        return f"message too large (up to {show_bytes(rule.max_bytes.at(ranks))} here)"
    schedule = policy.schedule_of(collective, rule, nodes)
    if not is_eligible(config, collective, schedule, ranks):
        return f"passed over: {schedule} has another order at {ranks} ranks (numerics.reproducible)"
    return "chosen"


def _crossing(config: Config, chosen: policy.Rule, nbytes: int, nodes: tuple[Place, ...]) -> Iterator[str]:
    """What the message sends from node to node."""
    from ringcomm import schedules
    from ringcomm.program.traffic import sent_across

    if policy.count_nodes(nodes) == 1 or chosen.collective == "barrier" or len(nodes) > MOST_RANKS:
        return
    root = schedules.roots(chosen.collective, len(nodes))[0]
    plan = schedules.build_all(chosen.collective, chosen.schedule, len(nodes), root, config.memory.slots)
    homes = [policy.node_of(place) for place in nodes]
    sent = sent_across(plan, homes)
    of_nodes = [sum(s for s, home in zip(sent, homes, strict=True) if home == node) for node in set(homes)]
    each = [show_bytes(math.ceil(part * nbytes)) for part in (sum(sent), max(of_nodes), max(sent))]
    rooted = f" with root {root}" if root is not None else ""
    yield f"between nodes{rooted}: {each[0]} in all, at most {each[1]} from one node and {each[2]} from one rank"


def _costs(config: Config, chosen: policy.Rule, nbytes: int, nodes: tuple[Place, ...]) -> Iterator[str]:
    """What numerics costs this message: against the rule that would carry it otherwise, and for 16-bit floats."""
    ranks = len(nodes)
    plain = policy.select(policy.table(config.without_numerics(), ranks, nodes), chosen.collective, nbytes)
    if plain.schedule != chosen.schedule:
        instead = f"numerics: instead of {plain.schedule} (the rule at {plain.source})"
        if ranks > MOST_RANKS:
            yield f"{instead}; costs are shown up to {MOST_RANKS} ranks"
        else:
            now, before = (_taken(config, chosen.collective, r.schedule, nbytes, ranks) for r in (chosen, plain))
            yield f"{instead}: the busiest rank takes {show_bytes(now)} from others, where it took {show_bytes(before)}"
    if chosen.wide:
        yield (
            f"numerics: float16 and bfloat16 travel as float32: {show_bytes(2 * nbytes)} on the way, "
            "and as much memory on each rank"
        )


def _taken(config: Config, collective: str, schedule: str, nbytes: int, ranks: int) -> int:
    """Bytes the busiest rank takes from others' slots."""
    from ringcomm import schedules
    from ringcomm.program.ops import Opcode, Program, RefKind

    def slots(p: Program) -> int:
        steps = (step for step in p.steps if step.opcode != Opcode.skip)
        return sum(ref.kind == RefKind.RECEIVER for step in steps for ref in step.sources)

    root = schedules.roots(collective, ranks)[0]
    programs = schedules.build_all(collective, schedule, ranks, root, config.memory.slots)
    return max(slots(p) * nbytes // max(p.nchunks_in, p.nchunks_out) for p in programs)
