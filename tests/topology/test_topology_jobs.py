"""Real ranks: declared nodes choose the rule in a running job, disagreement is named, a survey proves who is where."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from ranks import RankError, run_ranks
from ringcomm.bootstrap import cards, survey
from ringcomm.discover import routes
from ringcomm.discover.machine import Sources
from ringcomm.ranges import parse_ranges
from ringcomm.tools import topo
from ringcomm.topology.reach import connection

RULES = {"all_reduce": [{"nodes": 2, "schedule": "tree"}, {"schedule": "ring"}]}


def two_nodes(rank: int, world: int) -> list[float]:
    """An all_reduce over all ranks, then in each node, then in pairs across: groups of 2 ranks on 1 node and on 2."""
    dist.init_process_group("ringcomm")
    pairs = ([0, 2], [1, 3], [0, 1], [2, 3])
    inside_and_across = [dist.new_group(members) for members in pairs]
    results = []
    for group in (None, *(g for g, members in zip(inside_and_across, pairs, strict=True) if rank in members)):
        value = torch.full((10,), float(rank + 1))
        dist.all_reduce(value, group=group)
        results.append(float(value[0]))
    dist.destroy_process_group()
    return results


def test_a_job_of_two_declared_nodes_takes_the_rule_for_two_and_its_subgroups_the_other(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"topology:\n  nodes: [[0, 2], [1, 3]]\npolicy: {json.dumps(RULES)}\n")
    env: dict[str, str | None] = {"RINGCOMM_CONFIG": str(file), "RINGCOMM_DEBUG": "INFO"}
    found = run_ranks(two_nodes, 4, env={**env, "RINGCOMM_DEBUG_FILE": str(tmp_path / "log-%r")})
    assert found == [[10.0, 4.0, 3.0], [10.0, 6.0, 3.0], [10.0, 4.0, 7.0], [10.0, 6.0, 7.0]]
    lines = (tmp_path / "log-0").read_text().splitlines()
    rules = [line.split("->")[1] for line in lines if "all_reduce" in line and "->" in line]
    assert [schedule in rule for schedule, rule in zip(("tree", "ring", "tree"), rules, strict=True)] == [True] * 3, (
        lines
    )
    shapes = [line.partition("topology: ")[2] for line in lines if "topology: " in line]
    assert shapes[0] == f"4 ranks on 2 nodes of 2, not contiguous, declared by {file}:2"
    assert shapes[1].startswith("2 ranks on 1 node of 2")


def declared_otherwise(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm", pg_options={"topology": {"ranks_per_node": 1 if rank == 2 else 3}})


def test_ranks_that_declare_different_shapes_are_named() -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(declared_otherwise, 3)
    for error in caught.value.errors.values():
        assert "topology.ranks_per_node: 3 on ranks 0-1, 1 on rank 2" in str(error)


def undeclared(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm", pg_options={"topology": {"nodes": [[0, 1]]}})


def test_a_job_larger_than_its_declaration_is_refused_on_every_rank_at_once() -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(undeclared, 3)
    errors = [str(error) for error in caught.value.errors.values()]
    assert len(errors) == 3 and all("declares 2 ranks (0 to 1), but this group has rank 2" in text for text in errors)


def shown(rank: int, world: int, arguments: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert topo.main(arguments) == 0
    return out.getvalue()


def test_under_a_launcher_rank_0_prints_what_all_ranks_proved(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("topology: {ranks_per_node: 2}\n")
    file = tmp_path / "t.json"
    arguments = ["--json", "--save", str(file), "--config", str(tmp_path / "mine.yaml")]
    printed, *others = run_ranks(shown, 3, arguments)
    assert others == ["", ""]
    answer = json.loads(printed)
    assert json.loads(file.read_text()) == answer["topology"]
    assert [rank["opened"] for rank in answer["topology"]["ranks"]] == ["0-2"] * 3
    assert [rank["node"] for rank in answer["topology"]["ranks"]] == [0, 0, 1]
    assert len({rank["pid"] for rank in answer["topology"]["ranks"]}) == 3
    assert {(c["kind"], c["proved"]) for c in answer["connections"]} == {("shm", True)}


CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def leave_network_namespace() -> str:
    """'' once this process is in a network namespace of its own, or why it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0:
        return ""
    return f"no network namespaces here: {os.strerror(ctypes.get_errno())}"


def found_from(rank: int, world: int, apart: int) -> tuple[str, Any, str]:
    """What a rank finds when `apart` moves into another network namespace after it has joined the store."""
    store, _, _ = next(cast(Any, dist.rendezvous)("env://"))
    refused = leave_network_namespace() if rank == apart else ""
    store.set(f"moved/{rank}", refused)
    refused = store.get(f"moved/{apart}").decode()
    if refused:
        return refused, None, ""
    found = survey.survey(store, rank, world, 30.0)
    return "", found, routes.route("198.51.100.1", []).why_not if rank == apart else ""


def test_a_rank_in_another_network_namespace_of_the_same_kernel_is_found_to_be_on_another_node() -> None:
    results = run_ranks(found_from, 3, 1)
    if results[0][0]:
        pytest.skip(results[0][0])
    (_, found, _), (_, there, no_way), _ = results
    assert found == there
    assert found.nodes == ((0, 2), (1,)) and [rank.opened for rank in found.ranks] == ["0,2", "1", "0,2"]
    assert connection(found, 0, 2).proved
    apart = connection(found, 0, 1)
    assert apart.kind is None and "one kernel, two network namespaces" in apart.why
    assert "the writer has no way to the reader: Network is unreachable" in apart.why
    assert "which has no address to offer" in connection(found, 1, 0).why
    assert no_way == "Network is unreachable"


LOCAL = {"timeout", "set_timeout", "has_extended_api"}
"""Answered by the client: nothing travels to the store."""


class Counting:
    """A store that counts the calls that travel."""

    def __init__(self, store: Any, calls: Counter[str]) -> None:
        self.store, self.calls = store, calls

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += name not in LOCAL
        return getattr(self.store, name)


def surveyed(size: int, tmp_path: Path) -> tuple[int, list[Any]]:
    """(store calls, what each rank found), the ranks being threads over one store."""
    calls: Counter[str] = Counter()
    store: Any = Counting(dist.HashStore(), calls)
    sources = Sources(tmp_path, addresses=dict)  # an empty machine: no time is spent on its facts
    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(survey.survey, store, r, size, 120.0, None, sources) for r in range(size)]
        found = [rank.result() for rank in ranks]
    return sum(calls.values()), found


def test_finding_out_takes_as_many_store_calls_a_rank_at_64_ranks_as_at_16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With waiting in the store, and not asking now and then, the calls are counted exactly however slow the machine is.
    monkeypatch.setattr(cards, "FIRST_WAIT", 120.0)
    for size in (16, 64):
        count, found = surveyed(size, tmp_path)
        # Two exchanges of 7 calls a rank and 9 on rank 0.
        assert count == 2 * (7 * size + 2)
        assert all(topology == found[0] for topology in found) and len(found[0].machines) == 1
        assert all(parse_ranges(rank.opened or "") == tuple(range(size)) for rank in found[0].ranks)
