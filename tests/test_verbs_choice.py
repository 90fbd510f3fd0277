"""Which wire a group takes between nodes: what ranks offer, what all decide alike, how devices are named."""

from __future__ import annotations

from typing import Any

import pytest

from ringcomm import config, verbs
from ringcomm.errors import BootstrapError, ConfigError

RAIL = {
    "name": "mlx5_0 port 1",
    "ethernet": True,
    "lid": 0,
    "mtu": 4096,
    "gid": "10.0.0.1",
    "gid_index": 3,
    "gid_kind": "RoCE v2",
}
NONE = "libibverbs.so.1 cannot be opened"


class Devices:
    """Stands for the extension: ports of devices, or none and why."""

    def __init__(self, ports: list[str], why_not: str = "", down: str = "") -> None:
        self.ports, self.why_not, self.down = ports, why_not, down
        self.opened: list[tuple[str, int, int]] = []
        self.traits: dict[str, Any] = {}

    def verbs_ports(self) -> list[dict[str, Any]]:
        if not self.ports:
            raise RuntimeError(self.why_not)
        named = [text.split(":") for text in self.ports]
        return [{"device": d, "port": int(p), "active": f"{d}:{p}" not in self.down.split()} for d, p in named]

    def open_verbs(self, rails: list[tuple[str, int, int]], **traits: Any) -> list[dict[str, Any]]:
        self.opened, self.traits = rails, traits
        return [{**RAIL, "name": f"{device} port {port}"} for device, port, _ in rails]


def settings(**given: Any) -> config.Config:
    return config.load(given, {})


def card(host: str, **more: Any) -> dict[str, Any]:
    return {"hostname": host, **more}


def test_without_a_name_the_first_active_port_is_opened() -> None:
    devices = Devices(["mlx5_0:1", "mlx5_0:2", "mlx5_1:1"], down="mlx5_0:1")
    assert verbs.offered(devices, settings())["verbs"][0]["name"] == "mlx5_0 port 2"
    assert devices.opened == [("mlx5_0", 2, -1)]


@pytest.mark.parametrize(
    ("hca", "expected"),
    [
        ("mlx5", ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_10:1"]),
        ("mlx5_1", ["mlx5_1:1", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1"]),
        ("=mlx5_1,mlx5_0:2", ["mlx5_1:1", "mlx5_0:2"]),
        (["=mlx5_10", "rxe:1"], ["mlx5_10:1", "rxe0:1"]),
        ("^mlx5_0,mlx5_1", ["rxe0:1"]),
        ("^=mlx5_0:1", ["mlx5_0:2"]),
    ],
)
def test_devices_are_named_as_nccl_names_them_and_are_rails_in_that_order(hca: Any, expected: list[str]) -> None:
    devices = Devices(["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_10:1", "rxe0:1"])
    verbs.offered(devices, settings(verbs={"hca": hca}))
    assert [f"{device}:{port}" for device, port, _ in devices.opened] == expected


def test_settings_reach_the_device() -> None:
    environment = {
        "RINGCOMM_IB_HCA": "=rxe1",
        "RINGCOMM_IB_GID_INDEX": "1",
        "RINGCOMM_IB_TC": "106",
        "RINGCOMM_IB_SL": "3",
        "RINGCOMM_IB_TIMEOUT": "14",
        "RINGCOMM_IB_RETRY_CNT": "5",
    }
    devices = Devices(["rxe0:1", "rxe1:1"])
    verbs.offered(devices, config.load({}, environment))
    assert devices.opened == [("rxe1", 1, 1)]
    expected = {"traffic_class": 106, "service_level": 3, "pkey_index": 0, "timeout": 14, "retry_count": 5}
    assert devices.traits == expected


@pytest.mark.parametrize("hca", ["", "=", "mlx5_0:0", "mlx5_0:x", "a b", [5], []])
def test_a_name_that_is_none_is_refused(hca: Any) -> None:
    with pytest.raises(ConfigError, match=r"RDMA device"):
        settings(verbs={"hca": hca})


def test_seven_retries_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"verbs.retry_count is 7.*from 0 to 6"):
        settings(verbs={"retry_count": 7})


def test_a_name_that_fits_nothing_says_what_there_is() -> None:
    found = verbs.offered(Devices(["rxe0:1"]), settings(verbs={"hca": "=mlx5_0"}))
    assert "verbs.hca is =mlx5_0" in found["no_verbs"] and "there are rxe0:1" in found["no_verbs"]


def test_nothing_is_opened_where_tcp_is_asked_for() -> None:
    for asked in (settings(net="tcp"), settings(connections={"across": "tcp"})):
        devices = Devices(["rxe0:1"])
        assert verbs.offered(devices, asked) == {} and devices.opened == []
        assert verbs.wire(asked, "0", [card("a", verbs=[RAIL]), card("b", verbs=[RAIL])]).kind == "tcp"
    both = settings(net="verbs", connections={"across": "tcp"})  # declared nodes of one machine, and RDMA between them
    assert verbs.wire(both, "0", [card("a", verbs=[RAIL])] * 2).kind == "verbs"


def test_auto_takes_verbs_where_all_can() -> None:
    cards = [card("a", verbs=[RAIL]), card("b", verbs=[RAIL])]
    assert verbs.wire(settings(), "0", cards) == verbs.Wire("verbs", "the best there is (net is auto)")
    assert verbs.wire(settings(net="verbs"), "0", cards) == verbs.Wire("verbs", "as net says")


def test_auto_takes_tcp_where_one_cannot_and_says_who_and_why() -> None:
    cards = [card("a", verbs=[RAIL]), card("b", no_verbs=NONE), card("b", no_verbs=NONE), card("c", no_verbs="x")]
    taken = verbs.wire(settings(), "0", cards)
    assert taken == verbs.Wire("tcp", f"verbs is not usable: b: {NONE}; c: x (net is auto)")


def test_who_asks_for_verbs_gets_them_or_one_text_with_the_reason_of_each_host() -> None:
    cards = [card("a", verbs=[RAIL]), card("b", no_verbs=NONE), card("c")]
    with pytest.raises(BootstrapError) as refused:
        verbs.wire(settings(net="verbs"), "job", cards)
    for part in ("group 'job': net is verbs", f"b: {NONE}", "c: it was not opened", "docs/rdma.md"):
        assert part in str(refused.value)


def test_infiniband_and_roce_do_not_meet() -> None:
    cards = [card("a", verbs=[RAIL]), card("b", verbs=[{**RAIL, "ethernet": False}])]
    assert "b has InfiniBand, a RoCE" in verbs.wire(settings(), "0", cards).why


def test_the_log_names_devices_and_addresses() -> None:
    infiniband = {**RAIL, "name": "mlx5_2 port 1", "ethernet": False, "lid": 17}
    assert verbs.of_rails([RAIL, infiniband]) == (
        "mlx5_0 port 1 (RoCE v2, 10.0.0.1, GID index 3, MTU 4096), mlx5_2 port 1 (InfiniBand, LID 17, MTU 4096)"
    )
