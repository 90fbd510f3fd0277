"""Rules for groups on several nodes: hierarchical, what it may be made of, and what the shipped default chooses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ringcomm import config, policy, schedules
from ringcomm.config import declared
from ringcomm.config.sections import Numerics
from ringcomm.errors import ConfigError
from ringcomm.explain import explain
from ringcomm.program.traffic import sent_across
from ringcomm.schedules.shapes import parse, places_of
from ringcomm.tools.explain import main
from ringcomm.topology import Rank, Topology

KIB, MIB = 1 << 10, 1 << 20
HIER = {"schedule": "hierarchical", "inside": "two_shot", "across": "ring"}
MANY = 9
"""More nodes than those between which one hop to each other node is chosen."""


def placed(shape: str) -> tuple[int, ...]:
    return places_of(parse(shape))


def chosen(settings: config.Config, collective: str, nbytes: int, shape: str) -> str:
    nodes = placed(shape)
    return policy.select(policy.table(settings, len(nodes), nodes), collective, nbytes).schedule


def test_a_rule_runs_on_the_nodes_of_the_group() -> None:
    settings = config.load({"policy": {"all_reduce": [HIER]}}, {})
    assert chosen(settings, "all_reduce", 1, "2x4") == "hierarchical(two_shot,ring)@2x4"
    assert chosen(settings, "all_reduce", 1, "[0,2|1,3]") == "hierarchical(two_shot,ring)@[0,2|1,3]"
    assert policy.table(settings, 3)[0].schedule == "two_shot"
    assert policy.table(settings, 3, (0, 1, 2))[0].schedule == "ring"
    assert policy.table(settings, 1)[0].schedule == "two_shot"


def test_rules_may_ask_for_several_nodes_or_few() -> None:
    lines = [{"min_nodes": 3, "schedule": "tree"}, {"nodes": 2, "schedule": "ring"}, {"max_nodes": 1, **HIER}]
    settings = config.load({"policy": {"all_reduce": lines}}, {})
    found = [policy.table(settings, 4, nodes)[0].schedule for nodes in ((0,) * 4, (0, 0, 1, 1), (0, 1, 2, 2))]
    assert found == ["two_shot", "ring", "tree"]


def refused(rule: str, tmp_path: Path, collective: str = "all_reduce") -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(f"policy:\n  {collective}:\n    - {{{rule}}}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(str(path), {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("collective", "rule", "parts"),
    [
        (
            "all_reduce",
            "schedule: hierarchical, across: ring",
            ["inside is missing", "one_shot, two_shot, ring, halving"],
        ),
        ("all_reduce", "schedule: hierarchical, inside: ring", ["across is missing", "halving, doubling, tree"]),
        ("all_reduce", "schedule: hierarchical, inside: doubling, across: ring", ["inside is 'doubling'", "allowed"]),
        ("all_reduce", "schedule: hierarchical, inside: rink, across: ring", ["inside is 'rink' (nearest: 'ring')"]),
        ("barrier", "schedule: hierarchical, inside: ring, across: chain", ["across is 'chain'", "in barrier are"]),
        (
            "broadcast",
            "schedule: hierarchical, inside: one_shot, across: ring",
            ["allowed in broadcast are one_shot, tree"],
        ),
        ("all_gather", "schedule: hierarchical, inside: tree, across: ring", ["in all_gather are one_shot, ring"]),
        ("all_to_all", "schedule: hierarchical, inside: ring, across: ring", ["does not serve all_to_all", "pairwise"]),
        (
            "gather",
            "schedule: hierarchical, inside: ring, across: ring",
            ["does not serve gather; allowed are one_shot"],
        ),
        ("all_reduce", "schedule: hierarchic, inside: ring, across: ring", ["not known (nearest: 'hierarchical')"]),
        ("all_reduce", "schedule: ring, across: ring", ["across goes with schedule: hierarchical, not ring"]),
        ("all_reduce", "schedule: ring, levels: [socket]", ["levels goes with schedule: hierarchical"]),
        (
            "all_reduce",
            "schedule: hierarchical, inside: ring, across: ring, levels: [sockets]",
            ["levels is ['sockets'];", "a list of some of pod, socket, numa, complex"],
        ),
        ("all_reduce", "schedule: ring, nodes: 2, min_nodes: 2", ["nodes excludes min_nodes and max_nodes"]),
        ("all_reduce", "schedule: ring, min_nodes: 3, max_nodes: 2", ["min_nodes is 3, above max_nodes 2"]),
    ],
)
def test_what_cannot_be_is_refused_with_place_and_allowed_names(
    tmp_path: Path, collective: str, rule: str, parts: list[str]
) -> None:
    message = refused(rule, tmp_path, collective)
    assert "mine.yaml:3: " in message and f"policy.{collective}[0]" in message
    assert [part for part in parts if part not in message] == [], message


def test_what_runs_inside_and_across_must_agree() -> None:
    def digest(**changes: Any) -> dict[str, str]:
        return config.load({"policy": {"all_reduce": [{**HIER, **changes}]}}, {}).digest_parts()

    changed = [digest(**c) for c in ({"inside": "ring"}, {"across": "tree"}, {"levels": ["socket"]}, {"min_nodes": 1})]
    assert all(other["policy.all_reduce"] != digest()["policy.all_reduce"] for other in changed)
    assert config.load({"policy": {"all_reduce": [HIER]}}, {}).policy["all_reduce"][0].text() == (
        "{schedule: hierarchical, inside: two_shot, across: ring}"
    )


def test_further_levels_come_from_a_saved_topology(tmp_path: Path) -> None:
    Topology(tuple(Rank(node=r // 4, socket=r // 2 % 2) for r in range(8))).save(tmp_path / "t.json")
    lines = [{"max_bytes": 100, **HIER}, {**HIER, "levels": ["socket"]}]
    settings = config.load({"topology": {"file": str(tmp_path / "t.json")}, "policy": {"all_reduce": lines}}, {})
    nodes = declared.nodes_of(settings, range(8))
    names = [r.schedule for r in policy.table(settings, 8, nodes) if r.collective == "all_reduce"]
    assert names == ["hierarchical(two_shot,ring)@2x4", "hierarchical(two_shot,ring)@2x2x2"]
    nodes = declared.nodes_of(settings, [0, 1, 2, 3])
    names = [r.schedule for r in policy.table(settings, 4, nodes) if r.collective == "all_reduce"]
    assert names == ["two_shot", "hierarchical(two_shot,ring)@2x2"]
    assert "2 nodes" in explain(settings, "all_reduce", 1, 8, declared.nodes_of(settings, range(8)))


LEVELLED = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")


@pytest.mark.parametrize("shape", ["2x2", "2x4", "3+1", "4x8", f"{MANY}x2", "[0,2|1,3]"])
@pytest.mark.parametrize("nbytes", [8, 64 * KIB, 64 * KIB + 1, MIB, 16 * MIB, 1 << 30])
def test_the_default_is_hierarchical_where_nodes_have_several_ranks(shape: str, nbytes: int) -> None:
    settings = config.load(None, {})
    for collective in LEVELLED:
        assert chosen(settings, collective, nbytes, shape).startswith("hierarchical("), collective
    assert chosen(settings, "barrier", 0, shape).startswith("hierarchical(")
    flat = {c: chosen(settings, c, nbytes, shape) for c in ("all_to_all", "gather", "scatter")}
    assert flat == {"all_to_all": "pairwise", "gather": "one_shot", "scatter": "one_shot"}


def test_the_default_is_flat_on_one_node_and_with_one_rank_on_each() -> None:
    settings = config.load(None, {})
    for nbytes in (8, MIB, 1 << 30):
        for collective in LEVELLED:
            assert "hierarchical" not in chosen(settings, collective, nbytes, "[0-2]")
            one_each = policy.table(settings, 3, (0, 1, 2))
            assert policy.select(one_each, collective, nbytes).schedule in schedules.BUILT_IN
    assert policy.select(policy.table(settings, 2, (0, 1)), "all_reduce", MIB).schedule.endswith("doubling)@2")
    assert chosen(settings, "all_reduce", 64 * KIB, "[0-3]").endswith("doubling)@4")


@pytest.mark.parametrize("shape", ["2x2", "2x4", "3+1", "4x4", f"{MANY}x2"])
def test_what_the_default_sends_between_nodes_is_what_the_formula_says(shape: str) -> None:
    """Bytes that leave the nodes, all together, of a message S on N nodes (docs/hierarchical.md)."""
    settings, nodes = config.load(None, {}), placed(shape)
    count, ranks = len(set(nodes)), len(nodes)
    for nbytes in (8, 64 * KIB, 256 * MIB):
        for collective in LEVELLED:
            name = chosen(settings, collective, nbytes, shape)
            plan = schedules.build_all(collective, name, ranks, schedules.roots(collective, ranks)[-1])
            sent = sum(sent_across(plan, nodes))
            if collective != "all_reduce":
                assert sent == count - 1, name
            elif "one_shot)" in name:
                assert sent == count * (count - 1), name
            elif "doubling" in name:  # every node doubles; 3 doublings of 8 nodes, then the ninth with each
                assert sent == {2: 2, 4: 8, MANY: 8 * 3 + 8 + 1}[count], name
            else:
                assert sent == 2 * (count - 1), name


@pytest.mark.parametrize("shape", ["2x2", "2x4", "4x8", "4+4+3", "3+1", "[0,2|1,3]", f"{MANY}x2"])
def test_reproducible_keeps_hierarchical_where_nodes_are_parts_of_the_tree(shape: str) -> None:
    settings = dataclasses.replace(config.load(None, {}), numerics=Numerics(reproducible=True))
    nodes = placed(shape)
    aligned = schedules.hierarchical.is_aligned(parse(shape))
    for rule in policy.table(settings, len(nodes), nodes):
        if rule.collective in ("all_reduce", "reduce", "reduce_scatter"):
            assert schedules.numerics(rule.collective, rule.schedule, len(nodes)).tree, rule
            hierarchical = rule.schedule.startswith("hierarchical(")
            assert not hierarchical or (aligned and rule.wide), rule
            if rule.collective == "all_reduce" and aligned and len(set(nodes)) < MANY:
                assert hierarchical, rule


def test_explain_shows_what_is_chosen_and_what_crosses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all_reduce", "1MiB", "--nodes", "2x4"]) == 0
    text = capsys.readouterr().out
    assert "in a group of 8 ranks on 2 nodes" in text and "-> hierarchical(two_shot,doubling)@2x4, slots" in text
    assert "between nodes: 2MiB in all, at most 1MiB from one node and 256KiB from one rank" in text
    assert main(["broadcast", "1MiB", "--nodes", "3+1"]) == 0
    assert "between nodes with root 0: 1MiB in all, at most 1MiB from one node" in capsys.readouterr().out
    assert main(["all_reduce", "1MiB", "--ranks", "8", "--nodes", "2"]) == 0
    assert capsys.readouterr().out == text
    assert main(["all_reduce", "1MiB", "--ranks", "8"]) == 0
    assert "between nodes" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give --ranks, or --nodes as a shape"),
        (["--ranks", "4", "--nodes", "5"], "from 1 to the number of ranks, 4"),
        (["--ranks", "4", "--nodes", "2x4"], "has 8 ranks, but --ranks is 4"),
        (["--ranks", "0"], "must be at least 1"),
    ],
)
def test_explain_refuses_groups_that_cannot_be(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["all_reduce", "1MiB", *arguments])
    assert text in capsys.readouterr().err
    assert main(["all_reduce", "1MiB", "--nodes", "2y"]) == 2
    assert "allowed are such as 2x4" in capsys.readouterr().err
