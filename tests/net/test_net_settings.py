"""What a job between hosts does with its settings: interfaces, ports, keys, address families; how it refuses."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lab_ranks import lab, run_on
from net_lab import Lab
from ranks import RankError
from ringcomm.tools import topo
from test_net_faults import listening


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with lab(2) as made:
        yield made


def summed(rank: int, world: int, env: dict[int, dict[str, str]] | None = None) -> tuple[float, list[int]]:
    """The sum of all ranks' numbers, and where this process listens. env: variables of single ranks."""
    os.environ.update((env or {}).get(rank, {}))
    dist.init_process_group("ringcomm")
    value = torch.full((1 << 15,), float(rank + 1))
    dist.all_reduce(value)
    ports = listening()
    dist.barrier()
    dist.destroy_process_group()
    return float(value.mean()), ports


def test_a_job_of_one_host_listens_nowhere(two: Lab) -> None:
    assert run_on(two, 2, summed, hosts=1) == [(3.0, []), (3.0, [])]


def test_ports_are_of_the_range_one_for_each_rank_of_a_host(two: Lab) -> None:
    found = run_on(two, 2, summed, env={"RINGCOMM_PORT_RANGE": "41000-41001"})
    assert [value for value, _ in found] == [10.0] * 4
    assert sorted(port for _, ports in found[:2] for port in ports) == [41000, 41001]
    assert sorted(port for _, ports in found[2:] for port in ports) == [41000, 41001]


def refused(made: Lab, per_host: int, env: dict[str, str | None], *args: Any) -> list[str]:
    with pytest.raises(RankError) as caught:
        run_on(made, per_host, summed, *args, env=env)
    texts = [str(error) for _, error in sorted(caught.value.errors.items())]
    assert len(texts) == made.hosts * per_host, "all ranks refuse at once"
    return texts


def test_too_few_ports_are_refused_by_all_with_one_text(two: Lab) -> None:
    texts = refused(two, 2, {"RINGCOMM_PORT_RANGE": "41000-41000"})
    assert len(set(texts)) == 1 and "41000" in texts[0] and "(host0)" in texts[0] and "(host1)" in texts[0]


def test_an_interface_that_is_not_there_is_refused_by_all_with_those_that_are(two: Lab) -> None:
    texts = refused(two, 1, {}, {1: {"RINGCOMM_SOCKET_IFNAME": "=eth7"}})
    assert len(set(texts)) == 1
    for word in ("rank 1 (host1)", "tcp.interfaces is =eth7", "environment RINGCOMM_SOCKET_IFNAME", "eth0 (10.77.0.2"):
        assert word in texts[0], texts[0]


def test_only_the_interfaces_that_are_named_are_used(two: Lab) -> None:
    env: dict[str, str | None] = {"RINGCOMM_SOCKET_IFNAME": "^=lo,docker", "RINGCOMM_NET": "tcp"}
    assert [value for value, _ in run_on(two, 1, summed, env=env)] == [3.0, 3.0]


def test_ranks_with_other_keys_are_refused_and_the_same_key_is_fine(two: Lab, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"this is key number {name}\n")
    same: dict[str, str | None] = {"RINGCOMM_KEY_FILE": str(tmp_path / "one")}
    assert [value for value, _ in run_on(two, 1, summed, env=same)] == [3.0, 3.0]
    texts = refused(two, 1, same, {1: {"RINGCOMM_KEY_FILE": str(tmp_path / "two")}})
    assert len(set(texts)) == 1 and "job keys differ" in texts[0] and "number" not in texts[0]
    (tmp_path / "two").write_text("short")
    texts = refused(two, 1, same, {1: {"RINGCOMM_KEY_FILE": str(tmp_path / "two")}})
    assert "rank 1 (host1)" in texts[0] and "5 bytes; at least 16" in texts[0]


def without(rank: int, world: int, families: list[str], store: str) -> float:
    """families: what is taken from eth0 first, as arguments of `ip addr flush`."""
    for arguments in families:
        subprocess.run(["ip", *arguments.split()], check=True)
    dist.init_process_group("ringcomm", init_method=f"file://{store}", rank=rank, world_size=world)
    value = torch.full((1 << 15,), float(rank + 1))
    dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()
    return float(value.mean())


FLUSH = {
    "IPv6": ["-4 addr flush dev eth0"],
    "link-local": ["-4 addr flush dev eth0", "-6 addr flush dev eth0 scope global"],
}


@pytest.mark.parametrize("left", FLUSH)
def test_ipv6_is_enough_and_even_link_local_addresses_are(left: str, tmp_path: Path) -> None:
    with lab(2) as made:
        assert run_on(made, 1, without, FLUSH[left], str(tmp_path / "store")) == [3.0, 3.0]


def test_a_host_without_any_address_is_named(tmp_path: Path) -> None:
    with lab(2) as made, pytest.raises(RankError) as caught:
        run_on(made, 1, without, ["addr flush dev eth0"], str(tmp_path / "store"))
    for error in caught.value.errors.values():
        assert "rank 0 (host0): no interface can be used; there are eth0 (no address), lo (loopback" in str(error)


def ruled(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm")
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True))
    dist.barrier()
    dist.destroy_process_group()


def test_rules_see_how_many_hosts_a_group_spans(two: Lab, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("policy: {all_reduce: [{nodes: 2, schedule: tree}, {schedule: ring}]}\n")
    env: dict[str, str | None] = {"RINGCOMM_DEBUG": "INFO", "RINGCOMM_DEBUG_FILE": str(tmp_path / "log-%r")}
    run_on(two, 2, ruled, env={**env, "RINGCOMM_CONFIG": str(rules)})
    lines = (tmp_path / "log-0").read_text().splitlines()
    taken = [line.split("->")[1].split()[0] for line in lines if "all_reduce" in line and "->" in line]
    assert taken[:2] == ["tree", "ring"], lines
    assert any("4 ranks on 2 nodes (host0: 2, host1: 2); over shm+tcp" in line for line in lines), lines


def shown(rank: int, world: int) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert topo.main([]) == 0
    return out.getvalue()


def test_topo_shows_tcp_between_the_hosts_and_by_which_interface(two: Lab) -> None:
    text = run_on(two, 2, shown)[0]
    assert "4 ranks on 2 nodes of 2" in text
    assert "0  X    shm  tcp  tcp" in text and "2  tcp  tcp  X    shm" in text
    assert "packets leave by eth0 (10.77.0.2 to 10.77.0.1)" in text
