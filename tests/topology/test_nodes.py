"""Which ranks are on one node, what a process tells of its port, and what it refuses: without a network."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from ringcomm import bootstrap, config, policy
from ringcomm.bootstrap import job_key, nodes, wires
from ringcomm.errors import AgreementError, BootstrapError, ConfigError
from ringcomm.topology.facts import Address, Interface

LO = Interface("lo", True, 65536, loopback=True, addresses=(Address("127.0.0.1", 8),))
ETH = Interface("eth0", True, 1500, addresses=(Address("10.0.0.5", 24),))


def cards(*machines: str) -> list[dict[str, Any]]:
    return [{"machine": machine, "hostname": f"host-{machine}"} for machine in machines]


def loaded(**sections: Any) -> config.Config:
    return config.load(sections, {})


def test_a_machine_is_a_node_numbered_by_its_lowest_rank() -> None:
    assert nodes.numbers(loaded(), range(5), cards("b", "a", "b", "c", "a")) == [0, 1, 0, 2, 1]
    assert nodes.places(loaded(), range(3), cards("a", "b", "a")) == (0, 1, 0)


def test_declared_nodes_of_one_machine_are_apart_only_where_tcp_is_asked_for() -> None:
    shape = {"nodes": [[0, 1], [2, 3]]}
    here = cards("a", "a", "a", "a")
    assert nodes.numbers(loaded(topology=shape), range(4), here) == [0, 0, 0, 0]
    tcp = loaded(topology=shape, connections={"across": "tcp"})
    assert nodes.numbers(tcp, range(4), here) == [0, 0, 1, 1]
    assert nodes.numbers(tcp, [3, 1, 2], here[:3]) == [0, 1, 0]
    assert nodes.places(loaded(topology=shape), range(4), here) == (0, 0, 1, 1), (
        "rules see the declared ones in any case"
    )
    # What is declared to be one node, but is not one machine, does not share memory.
    assert nodes.numbers(tcp, range(4), cards("a", "b", "a", "a")) == [0, 1, 2, 2]


def test_memory_is_laid_out_for_the_most_channels_any_number_of_nodes_could_ask_for() -> None:
    rules = [{"nodes": 2, "schedule": "ring", "channels": 4}, {"schedule": "ring", "channels": 2}]
    settings = loaded(policy={"all_reduce": rules})
    placed = [None, (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 2)]
    assert [policy.most_channels(settings, 4, nodes) for nodes in placed] == [4, 2, 4, 2]
    assert policy.most_channels(settings, 1, None) == 2
    with pytest.raises(ConfigError, match="no rule"):
        policy.most_channels(loaded(policy={"all_reduce": [{"nodes": 9, "schedule": "ring"}]}), 4, None)
    assert policy.most_channels(loaded(policy={"all_reduce": [{"nodes": 1, "schedule": "ring"}]}), 4, None) == 1


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ["10.0.0.5"]),
        ({"connections": {"across": "tcp"}}, ["10.0.0.5", "127.0.0.1"]),
        ({"tcp": {"interfaces": "=lo"}}, ["127.0.0.1"]),
        ({"tcp": {"interfaces": "^docker"}, "connections": {"across": "tcp"}}, ["10.0.0.5"]),
    ],
)
def test_loopback_is_listened_at_only_for_declared_nodes_or_on_request(
    monkeypatch: pytest.MonkeyPatch, settings: Any, found: list[str]
) -> None:
    monkeypatch.setattr(wires.routes, "is_ready", lambda address: True)
    assert wires._offered(loaded(**settings), [LO, ETH]) == found


def test_an_interface_without_an_address_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        wires._offered(loaded(tcp={"interfaces": "ib"}), [LO, ETH, Interface("ib0", False, 2044)])
    for word in ("tcp.interfaces is ib", "pg_options", "lo (loopback, 127.0.0.1)", "eth0 (10.0.0.5)", "ib0 (down)"):
        assert word in str(caught.value)


class Extension:
    """Opens ports that are numbers only."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def open_port(self, bind: list[str], key: bytes, **_: Any) -> int:
        self.keys.append(key)
        return 4000 + len(self.keys)

    def verbs_ports(self) -> list[dict[str, Any]]:
        raise RuntimeError("ringcomm: there is no RDMA device")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without a port, on a host with the interfaces above."""
    monkeypatch.setattr(wires, "_port", None)
    monkeypatch.setattr(wires, "_ways", {})
    monkeypatch.setattr(wires.interfaces, "interfaces", lambda found: (LO, ETH))
    monkeypatch.setattr(wires.routes, "is_ready", lambda address: True)
    yield


def other(**told: Any) -> dict[str, Any]:
    return {"port": 5000, "addresses": ["10.0.0.6"], "key": "k", **told}


def test_the_port_is_opened_once_and_told_in_one_exchange(fresh: None) -> None:
    asked: list[str] = []

    def exchange(card: dict[str, Any], group: str, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        asked.append(group)
        return [{**card, "nonce": "x"}, {**other(key=card["key"]), "nonce": "y"}]

    extension, store, two = Extension(), dist.HashStore(), cards("a", "b")
    two = [{**one, "nonce": str(i)} for i, one in enumerate(two)]
    assert wires.card() == {}
    found = wires.introduced(extension, loaded(), store, "g", two, exchange)
    assert asked == ["g/wires"] and [one["nonce"] for one in found] == ["0", "1"]
    assert wires.card()["port"] == found[0]["port"] == 4001 and wires.card()["addresses"] == ["10.0.0.5"]
    assert wires.introduced(extension, loaded(), store, "h", found, exchange) == found and asked == ["g/wires"]
    assert len(extension.keys) == 1


def refusal(kind: type[Exception], told: dict[str, Any]) -> str:
    def exchange(card: dict[str, Any], group: str, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [card, told]

    two = [{**one, "nonce": ""} for one in cards("a", "b")]
    with pytest.raises(kind) as caught:
        wires.introduced(Extension(), loaded(), dist.HashStore(), "g", two, exchange)
    return str(caught.value)


def test_what_is_wrong_on_one_rank_all_refuse(fresh: None) -> None:
    assert "rank 1 (host-b): no port is free" in refusal(BootstrapError, {"problem": "no port is free"})
    text = refusal(AgreementError, other(key="another"))
    assert "ranks 1 have another" in text and "key file" in text


def test_a_key_comes_from_the_file_or_is_the_same_through_any_prefix_of_the_store(tmp_path: Any) -> None:
    store = dist.HashStore()
    key = job_key.of_job(loaded(), store)
    assert len(key) == 32
    assert job_key.of_job(loaded(), dist.PrefixStore("a", dist.PrefixStore("b", store))) == key
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert job_key.of_job(loaded(tcp={"key_file": str(tmp_path / "key")}), store) == b"0123456789abcdef"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        job_key.of_job(loaded(tcp={"key_file": str(tmp_path / "none")}), store)


def test_ipv6_addresses_are_dialled_in_brackets_and_the_own_node_is_not(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [{**one, **other(addresses=["10.0.0.6", "fd00::6"])} for one in cards("a", "a", "b")]
    ways = [wires.Route(a, "10.0.0.5", "eth0") for a in ("fd00::6", "10.0.0.6")]
    monkeypatch.setattr(wires.routes, "routes", lambda offered, ours: ways)
    own = wires.Target()
    assert wires.targets(found, 0, [0, 0, 1]) == [own, own, wires.Target(["[fd00::6]:5000", "10.0.0.6:5000"])]
    monkeypatch.setattr(wires, "_ways", {})
    monkeypatch.setattr(wires.routes, "routes", lambda o, u: [wires.Route("10.0.0.6", why_not="no route to host")])
    with pytest.raises(BootstrapError, match=r"rank 2 \(host-b\) listens at .* has no way: no route to host"):
        wires.targets(found, 0, [0, 0, 1])


def test_the_ranks_of_a_node_begin_with_different_rails(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{**one, **other(addresses=["10.0.0.6", "10.1.0.6", "10.2.0.6"])} for one in cards("a", "a", "a", "b")]
    ways = [wires.Route(f"10.{net}.0.6", f"10.{net}.0.5", f"eth{net}") for net in range(3)]
    monkeypatch.setattr(wires.routes, "routes", lambda offered, ours: ways)
    monkeypatch.setattr(wires.routes, "rails", lambda ways, ours: 2)
    for rank, order in enumerate(((0, 1, 2), (1, 0, 2), (0, 1, 2))):
        to = wires.targets(found, rank, [0, 0, 0, 1])[3]
        assert to == wires.Target([f"10.{net}.0.6:5000" for net in order], rails=2)


def test_all_ranks_see_the_same_addresses_and_one_key(fresh: None) -> None:
    store = dist.HashStore()

    def rank(number: int) -> list[dict[str, Any]]:
        def exchange(card: dict[str, Any], group: str, known: Any = None) -> list[dict[str, Any]]:
            return bootstrap.exchange(store, number, 3, card, 30.0, group, known)

        first = exchange({"machine": str(number), "hostname": "h"}, "g")
        return wires.introduced(Extension(), loaded(), store, "g", first, exchange)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(rank, range(3)))
    assert results[0] == results[1] == results[2] and len({one["key"] for one in results[0]}) == 1
