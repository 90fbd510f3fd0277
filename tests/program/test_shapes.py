"""The name of a hierarchical schedule holds the nodes of its group, and is read back; what is none is refused."""

from __future__ import annotations

import re

import pytest

from ringcomm.program.ops import ScheduleError
from ringcomm.program.verify import verify
from ringcomm.schedules import build, build_all, hierarchical, hierarchical_for, schedule_named, verify_schedule
from ringcomm.schedules.shapes import layouts, parse, places_of, show, tree_of
from ringcomm.tools.verify import main
from ringcomm.topology import Rank, Topology

SHAPES = {
    "2x2": ((0, 1), (2, 3)),
    "3": (0, 1, 2),
    "3+1": ((0, 1, 2), (3,)),
    "2x2x2": (((0, 1), (2, 3)), ((4, 5), (6, 7))),
    "[0,2|1,3]": ((0, 2), (1, 3)),
    "[0-2,5|3-4]": ((0, 1, 2, 5), (3, 4)),
    "[[0-1|2]|[3|4-5]]": (((0, 1), (2,)), ((3,), (4, 5))),
}


@pytest.mark.parametrize(("text", "tree"), SHAPES.items())
def test_a_shape_is_read_back(text: str, tree: object) -> None:
    assert parse(text) == tree and show(parse(text)) == text


def test_every_layout_is_read_back() -> None:
    for ranks in range(1, 34):
        for text in layouts(ranks):
            assert parse(show(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text", ["", "x", "2x", "0x2", "2+", "[0,1", "[0|2]", "[0|0]", "[|1]", "[0-1|2,1]", "[[0|1]|2]", "a", "9999x9999"]
)
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape("allowed are such as 2x4, 3+1 or [0,2|1,3]")):
        parse(text)


def test_the_tree_of_node_numbers_does_not_depend_on_the_numbers() -> None:
    assert tree_of((7, 7, 3, 3)) == tree_of((0, 0, 1, 1)) == ((0, 1), (2, 3))
    assert tree_of((1, 0, 1, 0)) == ((0, 2), (1, 3)) and places_of(((0, 2), (1, 3))) == (0, 1, 0, 1)


def test_where_only_one_of_the_two_is_needed_it_runs_alone() -> None:
    assert hierarchical_for("all_reduce", "ring", "halving", (0, 0, 0)) == "ring"
    assert hierarchical_for("all_reduce", "ring", "halving", (0, 1, 2)) == "halving"
    assert hierarchical_for("all_reduce", "ring", "halving", (4,)) == "ring"
    assert hierarchical_for("all_reduce", "ring", "doubling", (0, 1, 2)) == "hierarchical(ring,doubling)@3"
    assert hierarchical_for("broadcast", "two_shot", "chain", (0, 0)) == "one_shot"
    assert hierarchical_for("broadcast", "two_shot", "chain", (0, 0, 1)) == "hierarchical(two_shot,chain)@2+1"


def test_further_levels_are_taken_where_all_ranks_have_them() -> None:
    ranks = [Rank(node=r // 4, socket=r // 2 % 2) for r in range(8)]
    places = Topology(tuple(ranks)).places
    both = [hierarchical_for("all_reduce", "two_shot", "ring", places, levels) for levels in ((), ("socket",))]
    assert both == ["hierarchical(two_shot,ring)@2x4", "hierarchical(two_shot,ring)@2x2x2"]
    assert hierarchical_for("all_reduce", "two_shot", "ring", (0, 0, 1, 1), ("socket",)).endswith("@2x2")
    assert Topology.of_nodes([[0, 1], [2, 3]]).places == (0, 0, 1, 1)


def test_such_a_schedule_is_built_by_its_name() -> None:
    name = "hierarchical(two_shot,ring)@2x2"
    assert [c.name for c in schedule_named(name).collectives] == ["all_reduce"]
    assert build("all_reduce", name, 4, 1) is build("all_reduce", name, 4, 1)
    verify(build_all("all_reduce", name, 4))
    verify_schedule("all_reduce", name, 4)
    with pytest.raises(ScheduleError, match="each rank from 0 to 4 once"):
        build("all_reduce", name, 5, 1)
    with pytest.raises(ScheduleError, match="slots=1"):
        build("all_reduce", name, 4, 1, slots=1)
    with pytest.raises(ScheduleError, match=r"does not serve broadcast; it serves all_reduce"):
        build("broadcast", name, 4, 1, 0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hierarchical(two_shot)@2x2", "all_reduce: inside one_shot, two_shot, ring, halving, tree, across"),
        ("hierarchical(star,ring)@2x2", "no collective has 'star' inside and 'ring' across"),
        ("hierarchical(two_shot,ring)", "must be such as hierarchical(two_shot,ring)@2x4"),
        ("hierarchical(two_shot,ring)@2y4", "allowed are such as 2x4"),
    ],
)
def test_a_name_that_is_none_is_refused(name: str, text: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(text)):
        schedule_named(name)


def test_the_command_proves_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hierarchical", "--ranks", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    served = sum(len(i) * len(a) for i, a in hierarchical.ALLOWED.values())
    assert len(lines) == served * len(layouts(3)) and all(": right (" in line for line in lines)
    assert main(["hierarchical(ring,tree)@2x2x2"]) == 0
    assert capsys.readouterr().out.startswith("hierarchical(ring,tree)@2x2x2 all_reduce, 8 ranks, 4 slots: right (")
    assert main(["hierarchical(two_shot,doubling)@2x2", "--tree-order"]) == 0
    assert main(["hierarchical(two_shot,doubling)@[0,2|1,3]", "--tree-order"]) == 1
    assert main(["hierarchical(two_shot,doubling)@"]) == 2
