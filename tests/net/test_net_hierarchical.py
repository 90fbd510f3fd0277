"""Nodes that were found, not declared: the shipped rules are hierarchical there, and the wire carries what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lab_ranks import lab, run_on
from ringcomm import config, policy, schedules
from ringcomm.program.traffic import sent_across
from ringcomm.tools import bench_run
from ringcomm.tools.bench_cases import Case

MESSAGE, CALLS = 8 << 20, 8
FLAT = {"policy": {"all_reduce": [{"schedule": "two_shot"}]}}


def sent_by_this_host() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def counted(rank: int, world: int, collective: str, settings: dict[str, Any] | None) -> int:
    """Bytes that left this rank's host during the calls."""
    dist.init_process_group("ringcomm", pg_options=settings)
    whole = torch.ones(MESSAGE // 4)
    part = torch.ones(MESSAGE // 4 // world)

    def call() -> None:
        if collective == "all_reduce":
            dist.all_reduce(whole)
        elif collective == "broadcast":
            dist.broadcast(whole, 0)
        elif collective == "reduce":
            dist.reduce(whole, 0)
        elif collective == "all_gather":
            dist.all_gather_into_tensor(whole, part)
        else:
            dist.reduce_scatter_tensor(part, whole)

    call()
    dist.barrier()
    before = sent_by_this_host()
    dist.barrier()
    for _ in range(CALLS):
        call()
    dist.barrier()
    after = sent_by_this_host()
    dist.barrier()
    dist.destroy_process_group()
    return after - before


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "flat"])
def test_what_leaves_the_hosts_is_what_the_programs_send_across(collective: str) -> None:
    settings = FLAT if collective == "flat" else None
    carried = "all_reduce" if collective == "flat" else collective
    nodes = (0, 0, 1, 1)
    rule = policy.select(policy.table(config.load(settings, {}), 4, nodes), carried, MESSAGE)
    root = schedules.roots(carried, 4)[0]
    per_rank = sent_across(schedules.build_all(carried, rule.schedule, 4, root), nodes)
    with lab(2) as made:
        found = run_on(made, 2, counted, carried, settings, timeout=120)
    for host in (0, 1):
        wanted = float(sum(per_rank[2 * host : 2 * host + 2]) * MESSAGE * CALLS)
        for bytes_sent in found[2 * host : 2 * host + 2]:
            # What is not payload: packets and acknowledgements the other way.
            assert wanted <= bytes_sent <= 1.03 * wanted + 0.03 * MESSAGE * CALLS, (rule.schedule, host, wanted, found)
    whole = sum(per_rank)
    assert whole == {"all_reduce": 2, "flat": 4}.get(collective, 1)


def benched(rank: int, world: int) -> str:
    dist.init_process_group("gloo")
    case = Case("all_reduce", 4096, "float32", "sum", in_place=True, parts=0)
    result = bench_run.run(bench_run.Plan([case], ["ringcomm"], iters=1, rounds=1, quiet=True), lambda *_: None)
    dist.barrier()
    dist.destroy_process_group()
    return str(result.rows[0]["schedule"])


def test_the_bench_shows_the_schedule_of_the_nodes_that_were_found() -> None:
    with lab(2) as made:
        assert run_on(made, 2, benched) == ["hierarchical(one_shot,one_shot)@2x2"] * 4


def a_job(rank: int, world: int) -> float:
    dist.init_process_group("ringcomm")
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor[0])


def test_the_log_names_the_nodes_that_were_found(tmp_path: Path) -> None:
    with lab(2) as made:
        env: dict[str, str | None] = {"RINGCOMM_DEBUG": "INFO", "RINGCOMM_DEBUG_FILE": str(tmp_path / "log-%r")}
        assert run_on(made, 2, a_job, env=env) == [10.0] * 4
    assert "hierarchical(one_shot,one_shot)@2x2 (slot" in (tmp_path / "log-0").read_text()
