"""The way to a peer is the kernel's choice, never a guess from the host name; opening memory is the proof of a node."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ringcomm.discover.addresses import addresses
from ringcomm.discover.interfaces import interfaces
from ringcomm.discover.opening import Offer, can_open
from ringcomm.discover.routes import (
    Route,
    best_route,
    is_ready,
    link_local_offers,
    master_warning,
    offers,
    rails,
    route,
    routes,
)
from ringcomm.topology.facts import Address, Interface

LO = Interface("lo", True, 65536, loopback=True, addresses=(Address("127.0.0.1", 8), Address("::1", 128)))
ETH = Interface(
    "eth0", True, 1500, addresses=(Address("10.0.0.5", 24), Address("fe80::5", 64), Address("2001:db8::5", 64))
)
IB = Interface("ib0", True, 2044, addresses=(Address("10.9.0.5", 16),))
DOCKER = Interface("docker0", True, 1500, addresses=(Address("172.17.0.1", 16),))
DOWN = Interface("eth9", False, 1500, addresses=(Address("10.8.0.1", 24),))


def test_the_kernel_says_by_which_interface_and_source() -> None:
    assert route("127.0.0.1", [LO, ETH]) == Route("127.0.0.1", "127.0.0.1", "lo")
    here = interfaces(addresses())
    for one in here:
        for address in one.addresses:
            if one.up and "." in address.address:
                assert route(address.address, here).source == address.address


def test_a_host_name_is_not_resolved_behind_the_callers_back() -> None:
    with pytest.raises(ValueError, match="some-host"):
        route("some-host", [])


def test_what_is_offered_to_other_hosts_holds_no_loopback_link_local_or_dead_address() -> None:
    assert offers([LO, ETH, IB, DOWN]) == ["10.0.0.5", "2001:db8::5", "10.9.0.5"]


def kernel(working: dict[str, str]) -> Any:
    """A routing table: address -> source; others are unreachable."""

    def ask(address: str, _: Iterable[Interface]) -> Route:
        if address in working:
            return Route(address, working[address], "eth0")
        return Route(address, why_not="Network is unreachable")

    return ask


def test_a_network_we_share_with_the_peer_comes_before_any_other_way() -> None:
    ask = kernel({"10.0.1.7": "10.0.0.5", "10.9.0.7": "10.9.0.5"})
    assert best_route(["10.0.1.7", "10.9.0.7"], [ETH, IB], ask) == Route("10.9.0.7", "10.9.0.5", "eth0")
    assert best_route(["10.0.1.7"], [ETH, IB], ask) == Route("10.0.1.7", "10.0.0.5", "eth0")


def test_an_address_that_is_ours_too_is_no_way_to_the_peer() -> None:
    ask = kernel({"172.17.0.1": "172.17.0.1", "10.0.1.7": "10.0.0.5"})
    assert best_route(["172.17.0.1", "10.0.1.7"], [ETH, DOCKER], ask) == Route("10.0.1.7", "10.0.0.5", "eth0")


def test_the_ways_to_try_come_in_order_shared_and_fast_first_dead_ones_last() -> None:
    slow, fast = replace(ETH, rate=1.0), replace(IB, rate=200.0)
    sources = {"10.0.0.7": "10.0.0.5", "10.9.0.7": "10.9.0.5", "192.0.2.7": "10.0.0.5"}

    def ask(address: str, _: Iterable[Interface]) -> Route:
        name = "ib0" if address.startswith("10.9.") else "eth0"
        found = kernel(sources)(address, ())
        return replace(found, interface=name) if found.source else found

    offered = ["198.51.100.7", "192.0.2.7", "10.0.0.7", "10.9.0.7", "172.17.0.1"]
    found = routes(offered, [slow, fast, DOCKER], ask)
    assert [way.address for way in found] == ["10.9.0.7", "10.0.0.7", "192.0.2.7", "198.51.100.7"]


def test_rails_are_shared_networks_by_interfaces_that_are_equally_fast() -> None:
    def ours(*rates: float) -> list[Interface]:
        nets = enumerate(rates)
        return [
            Interface(f"eth{n}", True, 1500, rate=rate, addresses=(Address(f"10.{n}.0.5", 24),)) for n, rate in nets
        ]

    def ask(address: str, _: Iterable[Interface]) -> Route:
        net = address.split(".")[1]
        return Route(address, f"10.{net}.0.5", f"eth{net}")

    offered = ["10.0.0.7", "10.0.0.8", "10.1.0.7", "10.1.0.8", "10.2.9.7"]
    found = routes(offered, ours(25.0, 25.0, 25.0), ask)
    # Interfaces take turns; the last is on a network we do not share.
    assert [way.address for way in found] == ["10.0.0.7", "10.1.0.7", "10.0.0.8", "10.1.0.8", "10.2.9.7"]
    assert rails(found, ours(25.0, 25.0, 25.0)) == 2
    slower = ours(10.0, 25.0)
    found = routes(offered[:4], slower, ask)
    assert found[0].address == "10.1.0.7" and rails(found, slower) == 1
    both = [replace(way, interface="eth0,eth1") for way in found]  # one address on two interfaces: who knows which
    assert rails(both, slower) == 1


def test_a_link_local_address_is_tried_on_each_link_of_ours() -> None:
    found = routes(["fe80::7"], [LO, ETH, IB], kernel({"fe80::7%eth0": "fe80::5"}))
    assert found == [Route("fe80::7%eth0", "fe80::5", "eth0")]
    assert link_local_offers([LO, ETH, IB, DOWN]) == ["fe80::5%eth0"]


def test_an_address_is_ready_where_one_can_listen() -> None:
    assert is_ready("127.0.0.1") and not is_ready("198.51.100.1") and not is_ready("fe80::1%nowhere")


def test_no_way_is_said_with_the_kernels_reason() -> None:
    assert best_route(["10.7.0.1"], [ETH], kernel({})) == Route("10.7.0.1", why_not="Network is unreachable")
    assert best_route([], [ETH], kernel({})) is None


@pytest.mark.parametrize(
    ("name", "resolved", "warned"),
    [
        ("node-a", ["127.0.1.1"], "resolves to 127.0.1.1 here"),
        ("node-a", ["10.0.0.5"], ""),
        ("localhost", ["127.0.0.1", "::1"], ""),
        ("127.0.0.1", ["127.0.0.1"], ""),
        ("node-x", [], "cannot be resolved here"),
    ],
)
def test_a_master_name_that_means_our_own_loopback_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, name: str, resolved: list[str], warned: str
) -> None:
    def resolve(*_: Any) -> list[Any]:
        if not resolved:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, 0, 0, "", (address, 0)) for address in resolved]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert warned in master_warning(name) and bool(master_warning(name)) == bool(warned)


def test_a_wrong_secret_or_a_closed_offer_proves_nothing() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with Offer() as offer:
        assert can_open(offer.name, offer.secret, 5.0)
        assert not can_open(offer.name, "00" * 16, 5.0)
    assert not can_open(offer.name, offer.secret, 5.0)
    assert set(os.listdir("/proc/self/fd")) == before
