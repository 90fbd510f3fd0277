"""The measuring between hosts: the stream that stands beside, the tables, and one short sweep from end to end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import lab_ranks  # noqa: F401 - makes the folder scripts known
import performance_net
from lab_ranks import why_not
from net_stream import PIECE, Stream
from performance_net import Sweep, hierarchical, ladder_table, link_table

PORT = 29399


@pytest.mark.parametrize("both", [False, True])
def test_a_stream_ends_when_the_other_side_has_all(both: bool) -> None:
    ends: dict[bool, Stream] = {}

    def meet(accepts: bool) -> None:
        ends[accepts] = Stream("127.0.0.1", PORT + both, accepts)
        ends[accepts].carry(3, both)

    threads = [threading.Thread(target=meet, args=(accepts,)) for accepts in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    for end in ends.values():
        end._socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            end._socket.recv(1)  # nothing is left over
    assert len(ends) == 2
    for end in ends.values():
        end.close()


def row(nbytes: int, **seconds: float) -> dict[str, Any]:
    timed = {name.replace("_", " "): [value, value * 9, value * 0.5] for name, value in seconds.items()}
    return {"op": "all_reduce", "bytes": nbytes, "seconds": timed, "wire": {n: [1.5 * nbytes] * 3 for n in timed}}


def test_rates_are_bytes_over_the_middle_time_and_shares_are_of_the_one_way_stream() -> None:
    lines = link_table([row(PIECE, ringcomm=0.02, stream=0.01, stream_both_ways=0.0125)])
    assert lines[2:] == [
        "| 1 MiB | stream | 10000 | 104.9 | 157.3 | 100.0 % | 100.0 % |",
        "| 1 MiB | stream both ways | 12500 | 83.9 | 125.8 | 80.0 % | 80.0 % |",
        "| 1 MiB | ringcomm | 20000 | 52.4 | 78.6 | 50.0 % | 50.0 % |",
    ]


def test_the_fastest_is_one_of_ours_and_beside_the_first() -> None:
    lines = ladder_table([row(8, flat=4e-6, mine=2e-6, gloo=1e-6), row(1 << 20, flat=1e-3, mine=2e-3, gloo=3e-3)])
    assert lines[0] == "| bytes | flat | mine | gloo | flat / fastest | fastest |"
    assert lines[2:] == ["| 8 B | 4 | 2 | 1 | 2.00 | mine |", "| 1 MiB | 1000 | 2000 | 3000 | 1.00 | flat |"]


def test_tables_go_between_their_markers_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "one\n<!-- measured net {0}: begin -->\nold\n<!-- measured net {0}: end -->\n"
    page.write_text(text.format("a") + text.format("b"))
    performance_net.write(page, "net b", ["new"])
    assert page.read_text() == text.format("a") + text.format("b").replace("old", "new")


@pytest.mark.parametrize("name", ["link", "2x4", "4x2", "moves"])
def test_every_sweep_has_its_place_in_a_page(name: str) -> None:
    (sweep,) = (sweep for sweep in performance_net.SWEEPS if sweep.name == name)
    page = Path(__file__).parents[2] / "docs" / ("performance.md" if sweep.stream else "hierarchical.md")
    assert page.read_text().count(f"<!-- measured net {name}: begin -->") == 1


def test_a_sweep_measures_what_left_the_host() -> None:
    """all_reduce on 2 ranks: each sends the message once; so does the stream."""
    if why_not():
        pytest.skip(why_not())
    contenders = {"ringcomm": None, "ours": hierarchical("one_shot", "one_shot"), "gloo": None}
    sweep = Sweep("short", "", 2, 1, ("all_reduce", "all_gather"), (1 << 18,), contenders, True, slice=0.1, rounds=1)
    rows = performance_net.run(sweep, "400mbit", None)
    assert [r["op"] for r in rows] == ["all_reduce", "all_gather"]
    for found in rows:
        assert set(found["seconds"]) == {*contenders, "stream", "stream both ways"}
        assert all(len(values) == 1 and values[0] > 0 for values in found["seconds"].values())
    for name in (*contenders, "stream", "stream both ways"):
        # Barriers of the default group are among it, and acknowledgements.
        assert 1 << 18 <= rows[0]["wire"][name][0] <= 1.25 * (1 << 18), (name, rows)


def test_a_rank_that_fails_is_told() -> None:
    if why_not():
        pytest.skip(why_not())
    sweep = Sweep("short", "", 2, 1, ("all_reduce",), (8,), {"wrong": {"schedule": "no_such"}}, slice=0.1)
    with pytest.raises(RuntimeError, match="no_such"):
        performance_net.run(sweep, "400mbit", None)
