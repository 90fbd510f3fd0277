"""Which schedule carries a collective: the rules of a configuration, cut down to one group. Builds no program.

Only what every rank knows may choose (collective, bytes of symmetric calls, ranks, nodes); anything else would let
ranks choose differently and hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringcomm.config import COLLECTIVES, Config, PolicyRule
from ringcomm.config.values import show_bytes
from ringcomm.errors import ConfigError
from ringcomm.numerics import DIRECT, is_eligible, travels_wide
from ringcomm.topology import LEVELS, Place

# Programs made of fan-out connections only, whose slots do not shrink in large groups (Memory.capacity).
FAN_OUT_ONLY = frozenset({("all_reduce", "one_shot"), ("broadcast", "one_shot"), ("all_gather", "one_shot")})


@dataclass(frozen=True)
class Rule:
    """One line of a group's table: a message of `collective` up to max_bytes (None: any) runs `schedule`."""

    collective: str
    max_bytes: int | None
    """Whole message in bytes, inclusive."""
    schedule: str
    slot: int
    """How far a slot is filled, bytes; never above the slot's capacity."""
    channels: int
    source: str
    """`file:line` of the rule in the configuration."""
    wide: bool = False
    """16-bit floats travel as float32 (docs/numerics.md); max_bytes still counts what the caller gave."""


def table(config: Config, ranks: int, nodes: Sequence[Place] | None = None) -> list[Rule]:
    """The rules that can apply in a group of `ranks`: only byte thresholds are left, and they rise.

    nodes: for each group rank the number of its node, any numbers, or its numbers on all of topology.LEVELS; None: one
    node. All ranks must give the same.

    In the order of COLLECTIVES, then of the file; the first whose max_bytes is not below the message wins, and the last
    rule of each collective has none. `numerics.reproducible` leaves out rules whose schedule has another order; where
    that leaves messages without a rule, the direct schedule carries them. Raises ConfigError where a message would find
    no rule, or a slot is filled beyond its capacity, ScheduleError where a user's schedule does not serve the group.
    """
    placed = tuple(nodes) if nodes is not None else (0,) * ranks
    if ranks < 1 or len(placed) != ranks:
        raise ValueError(f"ranks is {ranks}, nodes are given for {len(placed)}; it must be as many, and at least 1")
    return [rule for collective in COLLECTIVES for rule in _rules(config, collective, placed)]


def most_channels(config: Config, ranks: int, nodes: tuple[Place, ...] | None) -> int:
    """The most channels a rule asks for that can apply; nodes: None while nobody knows how many there will be.

    Raises ConfigError as `table` does, but where the nodes are unknown only if no number of them is without a hole.
    """
    # Which ranks are on which node changes what a rule runs, but not whether it matches, nor its channels.
    tried = [_evenly(ranks, count) for count in _node_counts(config, ranks)] if nodes is None else [nodes]
    found, holes = [], []
    for placed in tried:
        try:
            found.append(max(rule.channels for rule in table(config, ranks, placed)))
        except ConfigError as error:
            holes.append(error)
    if not found:
        raise holes[0]
    return max(found)


def _node_counts(config: Config, ranks: int) -> list[int]:
    """Numbers of nodes that stand for all: 1, those that rules name or begin or end at, and the first none names."""
    named: set[int] = set()
    for rule in (rule for rules in config.policy.values() for rule in rules):
        exact, low, high = rule.nodes, rule.min_nodes, rule.max_nodes
        named |= {exact or 1, low or 1, (low or 2) - 1, high or 1, (high or 1) + 1}
    other = next(n for n in range(2, len(named) + 3) if n not in named)
    return sorted(n for n in {1, other, *named} if 1 <= n <= ranks)


def _evenly(ranks: int, nodes: int) -> tuple[Place, ...]:
    return tuple(rank * nodes // ranks for rank in range(ranks))


def select(rules: list[Rule], collective: str, nbytes: int) -> Rule:
    """The rule of a table for one message; what the data plane's search must agree with."""
    return next(r for r in rules if r.collective == collective and (r.max_bytes is None or nbytes <= r.max_bytes))


def matches(rule: PolicyRule, ranks: int, nodes: int) -> bool:
    """Whether a rule's conditions other than the bytes hold for a group."""
    return (
        matches_ranks(rule, ranks)
        and rule.nodes in (None, nodes)
        and (rule.min_nodes or nodes) <= nodes <= (rule.max_nodes or nodes)
    )


def matches_ranks(rule: PolicyRule, ranks: int) -> bool:
    return rule.ranks in (None, ranks) and (rule.min_ranks or ranks) <= ranks <= (rule.max_ranks or ranks)


def node_of(place: Place) -> Place:
    """Its node, whatever else is known of a place."""
    return place if isinstance(place, int) else place[: LEVELS.index("node") + 1]


def count_nodes(nodes: Sequence[Place]) -> int:
    return len(set(map(node_of, nodes)))


def schedule_of(collective: str, rule: PolicyRule, nodes: tuple[Place, ...]) -> str:
    """The name of what a rule runs in a group: of hierarchical one that says inside, across and the nodes."""
    if rule.schedule != "hierarchical":
        return rule.schedule
    from ringcomm import schedules

    assert rule.inside is not None and rule.across is not None  # config/rule_reading.py
    carried = "all_reduce" if collective == "barrier" else collective
    return schedules.hierarchical_for(carried, rule.inside, rule.across, nodes, rule.levels)


def _rules(config: Config, collective: str, placed: tuple[Place, ...]) -> list[Rule]:
    ranks, nodes = len(placed), count_nodes(placed)
    found: list[Rule] = []
    reached = covered = -1  # bytes that the rules found take; that all that match take
    whole = False
    for rule in config.policy.get(collective, ()):
        if not matches(rule, ranks, nodes):
            continue
        bound = rule.max_bytes.at(ranks) if rule.max_bytes is not None else None
        whole, covered = whole or bound is None, max(covered, bound or 0)
        if bound is not None and bound <= reached:
            continue  # an earlier rule takes all of its messages
        schedule = schedule_of(collective, rule, placed)
        if not is_eligible(config, collective, schedule, ranks):
            continue
        found.append(_rule(config, collective, rule, schedule, ranks))
        if bound is None:
            return found
        reached = bound
    if whole:  # only rules that were passed over take the rest
        direct = PolicyRule(schedule=DIRECT[collective], where="numerics.reproducible")
        return [*found, _rule(config, collective, direct, direct.schedule, ranks)]
    has = f"no rule for messages above {show_bytes(covered)}" if covered >= 0 else "no rule"
    raise ConfigError(
        f"policy.{collective} has {has} in a group of {ranks} ranks on {nodes} node{'s' * (nodes > 1)} "
        f"({config.origin}); end it with a rule that has neither max_bytes nor conditions"
    )


def _rule(config: Config, collective: str, rule: PolicyRule, schedule: str, ranks: int) -> Rule:
    bound = rule.max_bytes.at(ranks) if rule.max_bytes is not None else None
    slot = _slot(config, collective, rule, schedule, ranks)
    wide = travels_wide(config, collective, schedule, ranks)
    return Rule(collective, bound, schedule, slot, rule.channels, rule.where, wide)


def _slot(config: Config, collective: str, rule: PolicyRule, schedule: str, ranks: int) -> int:
    kind = "fan_out" if (collective, schedule) in FAN_OUT_ONLY else "pair"
    capacity = config.memory.capacity(ranks, kind)
    if rule.slot is None or (rule.slot > capacity and rule.inherited):
        return capacity
    if rule.slot > capacity:
        where = config.sources.get("memory.slot", "auto")
        raise ConfigError(
            f"{rule.where}: policy.{collective}: slot is {show_bytes(rule.slot)}, but a slot holds "
            f"{show_bytes(capacity)} in a group of {ranks} ranks (memory.slot: {where}); lower it, "
            "give the rule max_ranks, or set memory.slot"
        )
    return rule.slot
