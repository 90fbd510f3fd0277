"""The `topology` section: what is declared is what policy rules see; what is wrong is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringcomm import config, policy
from ringcomm.config import declared
from ringcomm.errors import ConfigError
from ringcomm.tools import explain
from ringcomm.topology import Rank, Topology

RULES = {"all_reduce": [{"nodes": 2, "schedule": "tree"}, {"schedule": "ring"}]}


def loaded(topology: Any, environ: dict[str, str] | None = None) -> config.Config:
    return config.load({"topology": topology, "policy": RULES}, environ or {})


def node_count(settings: config.Config, members: range) -> int:
    return policy.count_nodes(declared.nodes_of(settings, members) or ())


def saved(tmp_path: Path, name: str = "t.json", **changes: Any) -> Path:
    path = tmp_path / name
    Topology(tuple(Rank(node=r // 2, **changes) for r in range(4))).save(path)
    return path


def chosen(settings: config.Config, members: list[int]) -> str:
    rules = policy.table(settings, len(members), declared.nodes_of(settings, members))
    return policy.select(rules, "all_reduce", 1000).schedule


@pytest.mark.parametrize(
    "topology", [{"nodes": [[2, 3], [0, 1]]}, {"nodes": ["0-1", "2,3"]}, {"ranks_per_node": 2}, "file"]
)
def test_rules_see_the_nodes_a_group_spans(tmp_path: Path, topology: Any) -> None:
    settings = loaded({"file": str(saved(tmp_path))} if topology == "file" else topology)
    assert chosen(settings, [0, 1, 2, 3]) == "tree"
    assert chosen(settings, [1, 2]) == "tree"
    assert chosen(settings, [0, 1]) == chosen(settings, [3, 2]) == chosen(settings, [2]) == "ring"
    shape = declared.of_group(settings, [3, 0, 1])
    assert shape is not None and shape.nodes == ((0,), (1, 2))
    assert "3 ranks on 2 uneven nodes of 1, 2, declared by pg_options: topology." in declared.log_line(
        settings, [3, 0, 1]
    )


def test_undeclared_groups_are_one_node_and_nothing_is_logged() -> None:
    settings = loaded({})
    assert declared.nodes_of(settings, range(5)) is None and chosen(settings, [0, 1]) == "ring"
    assert declared.of_group(settings, range(5)) is None and declared.log_line(settings, range(5)) == ""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nodes: [[0, 1], [1, 2]]", ["mine.yaml:2", "rank 1 is on two nodes", "topology.nodes"]),
        ("nodes:\n    - [0]\n    - [2]", ["mine.yaml:3", "rank 2 but not rank 1"]),
        ("nodes: []", ["mine.yaml:2", "topology.nodes is []", "a list of nodes"]),
        ("nodes: 3", ["mine.yaml:2", "topology.nodes is 3", "such as 0-3,8"]),
        ("nodes: [[0, x]]", ["mine.yaml:2", "'x'", "whole numbers from 0"]),
        ("nodes: [[0, -1]]", ["mine.yaml:2", "-1", "whole numbers from 0"]),
        ("nodes: [[0, true]]", ["mine.yaml:2", "True"]),
        ("nodes: [[0], []]", ["mine.yaml:2", "no ranks"]),
        ("nodes: [[0, 0]]", ["mine.yaml:2", "rank 0 twice"]),
        ("nodes: [0-x]", ["mine.yaml:2", "'0-x'", "0-3,8"]),
        ("ranks_per_node: 0", ["mine.yaml:2", "topology.ranks_per_node is 0", "from 1 to 65536"]),
        ("nods: [[0]]", ["mine.yaml:2", "'nods'", "nearest: 'nodes'", "nodes, ranks_per_node, file"]),
        (
            "nodes: [[0]]\n  file: t.json",
            ["topology.nodes (", "mine.yaml:2", "topology.file (", "mine.yaml:3", "exclude"],
        ),
        ("file: none.json", ["mine.yaml:2", "topology.file", "none.json cannot be read"]),
        ("file: bad.json", ["mine.yaml:2", "topology.file", "bad.json", ".ranks[0].node is 'x'", "a whole number"]),
        ("file: empty.json", ["mine.yaml:2", "empty.json", "holds no ranks"]),
    ],
)
def test_what_is_wrong_is_refused_with_place_value_and_what_is_allowed(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    head = {"format": "ringcomm topology", "version": 1}
    (tmp_path / "bad.json").write_text(json.dumps({**head, "ranks": [{"node": "x"}]}))
    (tmp_path / "empty.json").write_text(json.dumps(head))
    (tmp_path / "mine.yaml").write_text(f"topology:\n  {text}\n")
    with pytest.raises(ConfigError) as caught:
        config.load(str(tmp_path / "mine.yaml"), {})
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_file_is_relative_to_the_yaml_and_by_variable_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    (tmp_path / "mine.yaml").write_text("topology: {file: t.json}\n")
    assert node_count(config.load(str(tmp_path / "mine.yaml"), {}), range(4)) == 2
    with pytest.raises(ConfigError, match="must be absolute"):
        loaded({"file": "t.json"})
    monkeypatch.chdir(tmp_path)
    assert node_count(config.load(None, {"RINGCOMM_TOPOLOGY_FILE": "t.json"}), range(4)) == 2


def test_variables_declare_too_and_a_second_declaration_is_refused_naming_both() -> None:
    assert node_count(config.load(None, {"RINGCOMM_RANKS_PER_NODE": "3"}), range(7)) == 3
    with pytest.raises(ConfigError, match=r"topology\.nodes \(pg_options.*RINGCOMM_RANKS_PER_NODE\) exclude"):
        loaded({"nodes": [[0]]}, {"RINGCOMM_RANKS_PER_NODE": "3"})


@pytest.mark.parametrize("key", ["nodes", "file"])
def test_a_group_with_a_rank_that_was_not_declared_is_refused(tmp_path: Path, key: str) -> None:
    settings = loaded({"nodes": [[0, 1], [2, 3]]} if key == "nodes" else {"file": str(saved(tmp_path))})
    with pytest.raises(ConfigError, match=rf"topology\.{key} declares 4 ranks \(0 to 3\), but this group has rank 4"):
        declared.nodes_of(settings, [0, 4])


def test_the_shape_is_part_of_the_digest_and_the_path_of_a_file_is_not(tmp_path: Path) -> None:
    def differing(one: Any, two: Any) -> set[str]:
        a, b = loaded(one).digest_parts(), loaded(two).digest_parts()
        return {key for key in {*a, *b} if a.get(key) != b.get(key)}

    first, copy = {"file": str(saved(tmp_path))}, {"file": str(saved(tmp_path, "copy.json", pid=77))}
    other = {"file": str(saved(tmp_path, "other.json", numa=1))}
    assert differing(first, copy) == set() and differing(first, other) == {"topology.file"}
    assert differing({"nodes": [[0, 1]]}, {"nodes": [[1, 0]]}) == set()
    assert differing({"nodes": [[0], [1]]}, {"nodes": [[0, 1]]}) == {"topology.nodes"}
    assert differing({}, {"ranks_per_node": 2}) == {"topology.ranks_per_node"}
    long = loaded({"nodes": [[2 * i, 2 * i + 1] for i in range(500)]}).digest_parts()["topology.nodes"]
    assert len(long) < 80  # it travels in every card
    assert differing({"nodes": [[i] for i in range(500)]}, {"nodes": [[i] for i in [*range(498), 499, 498]]}) == set()


def test_explain_takes_the_declared_nodes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"topology: {{ranks_per_node: 2}}\npolicy: {json.dumps(RULES)}\n")
    for nodes, schedule in (([], "tree"), (["--nodes", "1"], "ring")):
        assert (
            explain.main(["all_reduce", "1MiB", "--ranks", "4", "--config", str(tmp_path / "mine.yaml"), *nodes]) == 0
        )
        assert f"-> {schedule}" in capsys.readouterr().out
