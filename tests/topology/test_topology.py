"""The value: levels form a tree whatever the facts are; it can be cut down, saved and loaded; bad ones are refused."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fake_machine as fake
from ringcomm.discover.machine import machine
from ringcomm.topology import LEVELS, Rank, Topology
from ringcomm.topology.facts import Machine
from ringcomm.topology.placing import Process, part_of, placed

CORES = ["0-3,16-19", "4-7,20-23", "8-9,24-25", "10-11,26-27"]


def two_servers(tmp_path: Path) -> list[Machine]:
    return [machine(fake.gpu_server(tmp_path / str(number), number)) for number in range(2)]


def eight_ranks(tmp_path: Path, declared: Topology | None = None) -> Topology:
    processes = [Process(number, 100 * number + i, cores) for number in range(2) for i, cores in enumerate(CORES)]
    return placed(processes, two_servers(tmp_path), declared)


def test_the_groups_of_each_level_lie_in_those_of_the_level_above() -> None:
    draw, parts = random.Random(7), [None, 0, 1]
    for _ in range(200):
        pods = [draw.randrange(2) for _ in range(4)]
        ranks = [
            Rank(node, pods[node], draw.choice(parts), draw.choice(parts), draw.choice(parts))
            for node in (draw.randrange(4) for _ in range(draw.randrange(1, 20)))
        ]
        topology = Topology(tuple(ranks))
        for level in LEVELS:
            assert sorted(r for group in topology.groups(level) for r in group) == list(range(len(ranks)))
        for outer, inner in pairwise(LEVELS):
            for group in topology.groups(inner):
                assert any(set(group) <= set(around) for around in topology.groups(outer))


def test_ranks_of_two_servers_are_placed_by_the_cores_they_may_use(tmp_path: Path) -> None:
    topology = eight_ranks(tmp_path)
    assert topology.nodes == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert topology.groups("socket") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert topology.groups("numa") == ((0,), (1,), (2, 3), (4,), (5,), (6, 7))
    assert [rank.complex for rank in topology.ranks[:4]] == [None, None, 4, 5]
    assert topology.levels == ("node", "socket", "numa", "complex")
    assert topology.rails == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}  # each on the NIC of its own socket


def test_ranks_that_may_run_anywhere_share_the_nics_evenly(tmp_path: Path) -> None:
    processes = [Process(0, pid, "0-31") for pid in range(4)]
    topology = placed(processes, two_servers(tmp_path)[:1])
    assert topology.rails == {0: (0, 2), 1: (1, 3)}
    assert topology.ranks[0].socket is None and topology.levels == ()


def test_a_declared_shape_stands_over_what_was_found_and_the_machines_stay(tmp_path: Path) -> None:
    topology = eight_ranks(tmp_path, Topology.of_nodes([[0, 2], [1, 3], [4, 5, 6, 7]]))
    assert topology.nodes == ((0, 2), (1, 3), (4, 5, 6, 7)) and not topology.contiguous and not topology.even
    assert [rank.machine for rank in topology.ranks] == [0] * 4 + [1] * 4
    with pytest.raises(ValueError, match="2 ranks are declared; the job has 8"):
        eight_ranks(tmp_path / "again", Topology.of_nodes([[0], [1]]))


def test_cores_over_two_parts_are_in_none(tmp_path: Path) -> None:
    numa = two_servers(tmp_path)[0].cores.numa
    assert [part_of(cores, numa) for cores in ("5", "3-4", "0-31", "", "99")] == [1, None, None, None, None]


def test_shapes_say_whether_they_are_even_and_contiguous() -> None:
    assert Topology.of_nodes([[2, 3], [1, 0]]).nodes == ((0, 1), (2, 3))
    flat, split = Topology.single_node(4), Topology.of_nodes([[0, 2], [1]])
    assert (flat.contiguous, flat.even, flat.levels) == (True, True, ())
    assert (split.contiguous, split.even, split.levels) == (False, False, ("node",))
    assert flat.describe() == "4 ranks on 1 node of 4"
    assert split.describe() == "3 ranks on 2 uneven nodes of 2, 1, not contiguous"
    assert split.node_of(1) == 1
    with pytest.raises(ValueError, match="rank is 3; allowed are 0 to 2"):
        split.node_of(3)
    with pytest.raises(ValueError, match=r"level is 'rack'; allowed are pod, node"):
        split.groups("rack")


@pytest.mark.parametrize("nodes", [[], [[]], [[0], [0]], [[1]], [[0, 2]], [[0], []]])
def test_nodes_that_leave_a_rank_out_or_name_it_twice_are_refused(nodes: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="each rank from 0 must be on exactly one node"):
        Topology.of_nodes(nodes)


def test_a_subgroup_keeps_the_places_of_its_members_in_its_own_order() -> None:
    whole = Topology(tuple(Rank(node=r // 2, opened="0-3") for r in range(4)))
    part = whole.restricted([3, 0, 1])
    assert part.nodes == ((0,), (1, 2)) and part.node_of(0) == 0
    assert [rank.opened for rank in part.ranks] == ["0-2"] * 3
    with pytest.raises(ValueError, match="rank is 4; allowed are 0 to 3"):
        whole.restricted([4])


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    topology = eight_ranks(tmp_path)
    topology.save(tmp_path / "t.json")
    loaded = Topology.load(tmp_path / "t.json")
    assert loaded == topology and loaded.shape() == topology.shape() and hash(loaded) == hash(topology)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.ranks = ()  # type: ignore[misc]


def test_the_shape_is_what_must_agree_and_nothing_else(tmp_path: Path) -> None:
    topology = eight_ranks(tmp_path)
    later = dataclasses.replace(topology.ranks[0], pid=9, opened="0", cores="1")
    assert dataclasses.replace(topology, ranks=(later, *topology.ranks[1:])).shape() == topology.shape()
    for change in ({"node": 7}, {"numa": 7}, {"rail": 7}):
        moved = dataclasses.replace(topology.ranks[0], **change)  # type: ignore[arg-type]
        assert dataclasses.replace(topology, ranks=(moved, *topology.ranks[1:])).shape() != topology.shape()


GOOD: dict[str, Any] = {"format": "ringcomm topology", "version": 1, "ranks": [{"node": 0}]}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"format": "x"}, ["is no topology"]),
        ({"version": 2}, ["version is 2", "reads 1"]),
        ({"rank": []}, ["unknown key 'rank'", "nearest: 'ranks'", "ranks, machines, ways"]),
        ({"ranks": {}}, [".ranks is {}", "allowed is a list"]),
        ({"ranks": [{}]}, [".ranks[0] lacks 'node'"]),
        ({"ranks": [{"node": "a"}]}, [".ranks[0].node is 'a'", "a whole number"]),
        ({"ranks": [{"node": True}]}, [".ranks[0].node is True"]),
        ({"ranks": [{"node": -1}]}, ["ranks[0].node is -1", "at least 0"]),
        ({"ranks": [{"node": 0, "numa": "x"}]}, [".ranks[0].numa is 'x'"]),
        ({"ranks": [{"node": 0, "nmua": 1}]}, ["unknown key 'nmua'", "nearest: 'numa'"]),
        ({"ranks": [{"node": 0, "machine": 0}]}, ["ranks[0].machine is 0", "0 machines"]),
        ({"ranks": [{"node": 0, "cores": "0-x"}]}, ["ranks[0].cores", "'0-x'", "0-3,8"]),
        ({"ranks": [{"node": 0}, {"node": 0, "pod": 1}]}, ["ranks[1].pod is 1", "pods 0 and 1"]),
        (
            {"machines": [{"hostname": "a", "cores": {"numa": [{"number": 0}]}}]},
            ["machines[0].cores.numa[0] lacks 'cpus'"],
        ),
        ({"machines": ["a"]}, [".machines[0] is 'a'", "an object with hostname"]),
    ],
)
def test_a_bad_file_is_refused_with_file_place_value_and_what_is_allowed(
    tmp_path: Path, change: dict[str, Any], parts: list[str]
) -> None:
    Topology.from_json(GOOD, "good")
    (tmp_path / "bad.json").write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ValueError) as caught:
        Topology.load(tmp_path / "bad.json", "bad.json")
    assert all(part in str(caught.value) for part in ["bad.json", *parts]), caught.value


def test_a_file_that_is_not_there_or_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json cannot be read: .*No such file"):
        Topology.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text('{\n"format": oops}')
    with pytest.raises(ValueError, match=r"text\.json:2 is not JSON"):
        Topology.load(tmp_path / "text.json")
