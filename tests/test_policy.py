"""The rules of a configuration, cut down to one group."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import Any

import pytest

from ringcomm import config, policy, schedules
from ringcomm.config.sections import Numerics
from ringcomm.errors import ConfigError
from ringcomm.explain import explain
from ringcomm.schedules.shapes import evenly

KIB = 1024
ROOT = Path(__file__).resolve().parents[1]


def rules(collective: str, *lines: Any, ranks: int, nodes: int = 1, **sections: Any) -> list[policy.Rule]:
    loaded = config.load({"policy": {collective: list(lines)}, **sections}, {})
    return [r for r in policy.table(loaded, ranks, evenly(ranks, nodes)) if r.collective == collective]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 9, 32, 33, 64, 65, 1024])
@pytest.mark.parametrize("name", config.shipped_names())
def test_every_shipped_policy_has_a_rule_for_every_message(name: str, ranks: int) -> None:
    loaded = config.load(name, {})
    table = policy.table(loaded, ranks)
    assert list(dict.fromkeys(r.collective for r in table)) == list(config.COLLECTIVES)
    for collective in config.COLLECTIVES:
        mine = [r for r in table if r.collective == collective]
        bounds = [r.max_bytes for r in mine]
        finite = [b for b in bounds if b is not None]
        assert [*finite, None] == bounds and finite == sorted(set(finite))
        assert all(0 < r.slot <= loaded.memory.capacity(ranks, "fan_out") and r.slot % 64 == 0 for r in mine)


def test_the_default_at_two_and_four_ranks() -> None:
    loaded = config.load(None, {})
    two = [r for r in policy.table(loaded, 2) if r.collective == "all_reduce"]
    assert [(r.max_bytes, r.schedule, r.slot) for r in two] == [
        (64 * KIB, "one_shot", 32 * KIB),
        (None, "ring", 256 * KIB),
    ]
    four = [r for r in policy.table(loaded, 4) if r.collective == "all_reduce"]
    assert [(r.max_bytes, r.schedule) for r in four] == [(32 * KIB, "one_shot"), (None, "two_shot")]
    assert two[0].source.startswith("default.yaml:")


def test_the_first_rule_that_matches_wins_for_random_policies() -> None:
    draw = random.Random(5)
    for _ in range(200):
        lines: list[dict[str, Any]] = []
        for _ in range(draw.randrange(6)):
            line: dict[str, Any] = {"schedule": draw.choice(["one_shot", "ring", "tree"])}
            for k, v in {
                "max_bytes": draw.randrange(100),
                "ranks": draw.randrange(1, 4),
                "nodes": draw.randrange(1, 3),
            }.items():
                if draw.random() < 0.5:
                    line[k] = v
            lines.append(line)
        lines.append({"schedule": "two_shot"})
        loaded = config.load({"policy": {"all_reduce": lines}}, {})
        for ranks in (1, 2, 3):
            for nodes in range(1, min(ranks, 2) + 1):
                table = policy.table(loaded, ranks, evenly(ranks, nodes))
                for nbytes in range(0, 110, 3):
                    first = next(
                        x
                        for x in lines
                        if x.get("ranks", ranks) == ranks
                        and x.get("nodes", nodes) == nodes
                        and nbytes <= x.get("max_bytes", nbytes)
                    )
                    assert policy.select(table, "all_reduce", nbytes).schedule == first["schedule"]


def test_a_bound_per_rank_is_divided_by_the_group() -> None:
    lines = [{"max_bytes": "128KiB/ranks", "schedule": "one_shot"}, {"schedule": "ring"}]
    assert [rules("all_reduce", *lines, ranks=n)[0].max_bytes for n in (1, 3, 4)] == [131072, 43690, 32768]


def test_a_hole_is_an_error_only_for_the_groups_it_is_in() -> None:
    lines = [{"ranks": 2, "schedule": "ring"}, {"max_bytes": "1MB", "schedule": "tree"}]
    assert [r.schedule for r in rules("all_reduce", *lines, ranks=2)] == ["ring"]
    with pytest.raises(
        ConfigError, match=r"policy.all_reduce has no rule for messages above 1MB in a group of 3 ranks"
    ):
        rules("all_reduce", *lines, ranks=3)
    with pytest.raises(
        ConfigError, match=r"policy.broadcast has no rule in a group of 2 ranks on 2 nodes \(pg_options"
    ):
        rules("broadcast", {"nodes": 1, "schedule": "tree"}, ranks=2, nodes=2)


def test_rules_that_can_never_apply_are_left_out() -> None:
    bounds = [100, 50, None, None]
    lines = [{"max_bytes": b, "schedule": "chain"} if b else {"schedule": "tree"} for b in bounds]
    found = rules("broadcast", *lines, ranks=2)
    assert [(r.max_bytes, r.schedule) for r in found] == [(100, "chain"), (None, "tree")]


def test_a_slot_is_not_filled_beyond_its_capacity() -> None:
    line = {"schedule": "ring", "slot": "256KiB"}
    assert rules("all_reduce", line, ranks=7)[0].slot == 256 * KIB
    with pytest.raises(
        ConfigError, match=r"all_reduce\[0\].*slot is 256KiB, but a slot holds 64KiB in a group of 8 ranks"
    ):
        rules("all_reduce", line, ranks=8)
    assert rules("all_reduce", line, ranks=8, memory={"slot": "512KiB"})[0].slot == 256 * KIB
    assert rules("all_reduce", {"schedule": "one_shot", "slot": "256KiB"}, ranks=8)[0].slot == 256 * KIB, (
        "fan-out slots do not shrink"
    )


def test_the_shipped_rules_give_way_to_a_smaller_capacity() -> None:
    loaded = config.load(None, {"RINGCOMM_SLOT": "16KiB"})
    assert {r.slot for r in policy.table(loaded, 2)} == {16 * KIB}


@pytest.mark.parametrize("page", ["README.md", "docs/configuration.md"])
def test_a_page_shows_rules_for_groups_of_any_size(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    policies = [block for block in blocks if "policy:" in block]
    assert policies
    for number, block in enumerate(policies):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        for ranks in (1, 2, 4, 8, 64):
            assert policy.table(config.load(str(file), {}), ranks)


def test_explain_names_the_rule_that_wins_and_why_the_others_do_not() -> None:
    text = explain(config.load(None, {}), "all_reduce", 100_000, 2)
    assert "message too large (up to 64KiB here)" in text and "-> ring" in text and "not reached" in text
    chosen = next(r for r in policy.table(config.load(None, {}), 2) if r.schedule == "ring")
    assert text.endswith(f"by the rule at {chosen.source}")
    with pytest.raises(ValueError, match="'all_reduc'; allowed are all_reduce"):
        explain(config.load(None, {}), "all_reduc", 1, 2)


REPRODUCIBLE = {"reproducible": True}


def test_reproducible_passes_over_rules_of_another_order_and_only_where_it_reduces() -> None:
    lines = [
        {"max_bytes": "1KiB", "schedule": "tree"},
        {"max_bytes": "1MiB", "schedule": "halving"},
        {"schedule": "ring"},
    ]
    found = {n: rules("all_reduce", *lines, ranks=n, numerics=REPRODUCIBLE) for n in (1, 2, 3, 4)}
    chosen = {n: [(r.max_bytes, r.schedule) for r in table] for n, table in found.items()}
    assert chosen[2] == [(KIB, "tree"), (KIB * KIB, "halving"), (None, "ring")] == chosen[1]
    assert chosen[3] == [(KIB, "tree"), (KIB * KIB, "halving"), (None, "two_shot")]
    assert chosen[4] == [(KIB * KIB, "halving"), (None, "two_shot")]
    assert found[4][0].source.startswith("pg_options") and found[4][1].source == "numerics.reproducible"
    for collective in ("broadcast", "barrier"):
        found_there = rules(collective, {"schedule": "tree"}, ranks=4, numerics=REPRODUCIBLE)
        assert [r.schedule for r in found_there] == ["tree"]


def test_reproducible_takes_a_later_rule_that_is_eligible_before_the_direct_schedule() -> None:
    lines = [{"schedule": "ring", "channels": 2}, {"schedule": "one_shot"}, {"schedule": "two_shot"}]
    assert [r.schedule for r in rules("all_reduce", *lines, ranks=4, numerics=REPRODUCIBLE)] == ["one_shot"]
    for collective in ("reduce", "reduce_scatter"):
        schedule = {"reduce": "chain", "reduce_scatter": "ring"}[collective]
        found = rules(collective, {"schedule": schedule}, ranks=4, numerics=REPRODUCIBLE)
        assert [(r.schedule, r.max_bytes) for r in found] == [("one_shot", None)]


def test_reproducible_does_not_mend_a_hole() -> None:
    with pytest.raises(ConfigError, match="has no rule for messages above 1MB in a group of 4 ranks"):
        rules("all_reduce", {"max_bytes": "1MB", "schedule": "ring"}, ranks=4, numerics=REPRODUCIBLE)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 33])
@pytest.mark.parametrize("name", config.shipped_names())
def test_shipped_policies_are_complete_when_reproducible(name: str, ranks: int) -> None:
    loaded = dataclasses.replace(config.load(name, {}), numerics=Numerics(reproducible=True))
    table = policy.table(loaded, ranks)
    for collective in config.COLLECTIVES:
        assert [r.max_bytes for r in table if r.collective == collective][-1] is None
    for rule in table:
        if rule.collective in ("all_reduce", "reduce", "reduce_scatter"):
            assert schedules.numerics(rule.collective, rule.schedule, ranks).tree


@pytest.mark.parametrize("numerics", [{"accumulate": "float32"}, {"reproducible": True}])
def test_what_is_rounded_more_than_once_travels_as_float32(numerics: dict[str, Any]) -> None:
    lines = [{"max_bytes": n, "schedule": s} for n, s in ((1, "one_shot"), (2, "two_shot"), (3, "halving"))]
    found = rules("all_reduce", *lines, {"schedule": "ring"}, ranks=4, numerics=numerics)
    wide = {"one_shot": False, "two_shot": False, "halving": True, "ring": True}
    assert len(found) == 4 and all(r.wide == (wide[r.schedule] and r.source != "numerics.reproducible") for r in found)
    assert not any(r.wide for r in rules("all_reduce", *lines, {"schedule": "ring"}, ranks=2, numerics=numerics))
    assert not any(r.wide for r in rules("all_reduce", *lines, {"schedule": "ring"}, ranks=4))
    assert not any(r.wide for r in rules("broadcast", {"schedule": "tree"}, ranks=4, numerics=numerics))


def test_explain_says_what_was_passed_over_and_what_it_costs() -> None:
    lines = [{"max_bytes": "64KiB", "schedule": "halving"}, {"schedule": "ring"}]
    loaded = config.load({"policy": {"all_reduce": lines}, "numerics": REPRODUCIBLE}, {})
    text = explain(loaded, "all_reduce", 1 << 20, 4)
    assert "passed over: ring has another order at 4 ranks (numerics.reproducible)" in text
    assert "-> two_shot" in text and "by the rule at numerics.reproducible" in text
    assert "instead of ring" in text and "takes 1536KiB from others, where it took 1536KiB" in text
    small = explain(loaded, "all_reduce", 4 * KIB, 4)
    assert "-> halving" in small and "float16 and bfloat16 travel as float32: 8KiB" in small
    assert "numerics" not in explain(loaded, "all_reduce", 1 << 20, 2).split("->")[1]
    reduce = explain(config.load({"numerics": REPRODUCIBLE}, {}), "reduce", 4 * KIB, 40)
    assert "instead of tree" in reduce and "takes 156KiB from others, where it took 8KiB" in reduce
