"""The exchange of cards through every kind of Store: normal, with leftovers, with restarts, with absent ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ringcomm import bootstrap
from ringcomm.bootstrap.agreement import rank_list
from ringcomm.discover import host
from ringcomm.errors import AgreementError, BootstrapError

OpenStore = Callable[[], Any]
ROOT = Path(__file__).parent.parent


@pytest.fixture(params=["hash", "tcp", "file", "prefix"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """A function that opens one more client of the same store, as each process has its own."""
    if request.param == "hash":
        shared = dist.HashStore()
        yield lambda: shared
    elif request.param == "file":
        yield lambda: dist.FileStore(str(tmp_path / "store"), -1)
    else:
        server = dist.TCPStore("127.0.0.1", 0, None, True)

        def client() -> dist.Store:
            own = dist.TCPStore("127.0.0.1", server.port, None, False)
            return own if request.param == "tcp" else dist.PrefixStore("a", dist.PrefixStore("b", own))

        yield client


def on_ranks(ranks: list[int], body: Callable[[int], Any]) -> list[Any]:
    """body(rank) in one thread each; results in order, exceptions as values."""

    def guarded(rank: int) -> Any:
        try:
            return body(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(guarded, ranks))


def exchanged(
    open_store: OpenStore, size: int, group: str = "g", timeout: float = 20.0, rounds: int = 1
) -> list[list[Any]]:
    """For each rank the results of `rounds` exchanges, one after the other without any waiting in between."""

    def body(rank: int) -> list[Any]:
        store = open_store()
        return [bootstrap.exchange(store, rank, size, {"who": rank, "round": i}, timeout, group) for i in range(rounds)]

    return on_ranks(list(range(size)), body)


def left_over(store: Any, size: int, group: str = "g") -> list[str]:
    names = [f"ringcomm/{group}/{n}" for n in ("blob", *(f"card/{r}" for r in range(size)))]
    return [n for n in names if store.check([n])]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_rank_gets_the_same_cards_in_rank_order_and_nothing_is_left(open_store: OpenStore, size: int) -> None:
    results = exchanged(open_store, size)
    assert [c["who"] for c in results[0][0]] == list(range(size))
    assert all(r == results[0] for r in results) or size == 1
    assert len({c["nonce"] for c in results[0][0]}) == size and all(len(c["nonce"]) == 32 for c in results[0][0])
    assert set(results[0][0][0]) == {"who", "round", "nonce"}
    assert left_over(open_store(), size) == []


def test_no_key_at_all_is_left_in_a_hash_store() -> None:
    store = dist.HashStore()
    exchanged(lambda: store, 5)
    assert store.num_keys() == 0


def test_the_same_name_in_the_same_store_may_be_used_at_once_again(open_store: OpenStore) -> None:
    results = exchanged(open_store, 4, rounds=15)
    for i in range(15):
        assert all(r[i] == results[0][i] for r in results), results
        assert [c["round"] for c in results[0][i]] == [i] * 4


def test_several_groups_at_the_same_time_do_not_meet(open_store: OpenStore) -> None:
    jobs = [(g, r) for g in ("a", "b") for r in range(3)]
    results = on_ranks(
        list(range(6)), lambda i: bootstrap.exchange(open_store(), jobs[i][1], 3, {"g": jobs[i][0]}, 20.0, jobs[i][0])
    )
    assert [[c["g"] for c in r] for r in results] == [["a"] * 3] * 3 + [["b"] * 3] * 3


def test_leftovers_of_a_run_that_died_are_not_taken_for_this_one(open_store: OpenStore) -> None:
    store = open_store()
    old = [{"who": "old", "nonce": f"{r:032x}"} for r in range(3)]
    store.set("ringcomm/g/blob", json.dumps({"id": "dead", "cards": old}))
    for r in range(3):
        store.set(f"ringcomm/g/card/{r}", json.dumps({**old[r], "after": ""}))
    store.add("ringcomm/g/ack/dead", 1)
    results = exchanged(open_store, 3)
    assert [[c["who"] for c in r[0]] for r in results] == [[0, 1, 2]] * 3
    assert left_over(store, 3) == []


def test_a_rank_that_is_restarted_before_the_group_is_made_takes_part_with_its_new_card(open_store: OpenStore) -> None:
    # Its first incarnation has set a card and died; rank 0 and 2 have gathered before the second one comes.
    open_store().set("ringcomm/g/card/1", json.dumps({"who": "first", "nonce": "1" * 32, "after": ""}))

    def body(rank: int) -> Any:
        time.sleep(0.4 if rank == 1 else 0.0)
        return bootstrap.exchange(open_store(), rank, 3, {"who": rank}, 20.0, "g")

    results = on_ranks([0, 2, 1], body)
    assert results[0] == results[1] == results[2] and [c["who"] for c in results[0]] == [0, 1, 2], results
    assert left_over(open_store(), 3) == []


def test_a_restart_of_rank_0_after_others_took_its_first_cards_is_healed() -> None:
    store = dist.HashStore()
    threads = ThreadPoolExecutor(2)
    others = [threads.submit(bootstrap.exchange, store, r, 3, {"who": r}, 20.0, "g") for r in (1, 2)]
    while not store.check(["ringcomm/g/card/1", "ringcomm/g/card/2"]):
        time.sleep(0.001)
    # A first rank 0 builds a blob that rank 2 is not in (as if that was restarted), and dies; rank 1 takes the blob.
    one = json.loads(store.get("ringcomm/g/card/1"))
    cards = [{"who": "dead", "nonce": "0" * 32}, one, {"who": "dead", "nonce": "2" * 32}]
    store.set("ringcomm/g/blob", json.dumps({"id": "first", "cards": cards}))
    while store.check(["ringcomm/g/card/1"]):
        time.sleep(0.001)
    zero = bootstrap.exchange(store, 0, 3, {"who": 0}, 20.0, "g")
    assert [c["who"] for c in zero] == [0, 1, 2] and all(o.result() == zero for o in others)
    assert [k for k in ("blob", "card/0", "card/1", "card/2") if store.check([f"ringcomm/g/{k}"])] == []


def test_a_restart_in_a_group_of_two_is_healed(open_store: OpenStore) -> None:
    open_store().set("ringcomm/g/card/1", json.dumps({"who": "first", "nonce": "1" * 32, "after": ""}))

    def body(rank: int) -> Any:
        time.sleep(0.3 * rank)
        return bootstrap.exchange(open_store(), rank, 2, {"who": rank}, 20.0, "g")

    zero, one = on_ranks([0, 1], body)
    assert zero == one and [c["who"] for c in zero] == [0, 1]
    assert left_over(open_store(), 2) == []


@pytest.mark.parametrize("absent", [0, 2])
def test_ranks_that_never_come_are_named_within_the_time(open_store: OpenStore, absent: int) -> None:
    def body(rank: int) -> Any:
        start = time.monotonic()
        try:
            return bootstrap.exchange(open_store(), rank, 4, {}, 1.5, "grp")
        except BootstrapError as error:
            return str(error), time.monotonic() - start

    for text, seconds in on_ranks([r for r in range(4) if r != absent], body):
        assert "'grp'" in text and f"rank {absent} did not come" in text and "1.5 s" in text, text
        assert 1.0 < seconds < 4.0


def test_a_rank_that_came_but_stopped_is_named(open_store: OpenStore) -> None:
    open_store().set("ringcomm/g/card/1", json.dumps({"who": "stopped", "nonce": "1" * 32, "after": ""}))
    with pytest.raises(BootstrapError, match="rank 1 came but did not take the cards"):
        bootstrap.exchange(open_store(), 0, 2, {}, 1.0, "g")


@pytest.mark.parametrize("absent", [0, 1])
def test_a_second_exchange_names_hosts_and_processes_of_the_first(open_store: OpenStore, absent: int) -> None:
    """A rank that has come and is gone, by Ctrl-C say, before it told where it listens."""
    cards = [{"hostname": f"host{r}", "pid": 100 + r} for r in range(3)]

    def body(rank: int) -> list[str]:
        known = bootstrap.exchange(open_store(), rank, 3, cards[rank], 20.0, "g")
        if rank == absent:
            return []
        with pytest.raises(BootstrapError) as caught:
            bootstrap.exchange(open_store(), rank, 3, {}, 1.0, "g/wires", known=known)
        return [str(caught.value)]

    texts = [text for found in on_ranks(list(range(3)), body) for text in found]
    assert len(texts) == 2
    for text in texts:
        assert f"rank {absent} (host host{absent}, pid 10{absent}) did not come" in text, text


def test_a_store_that_is_gone_in_a_second_exchange_names_the_process_that_held_it(open_store: OpenStore) -> None:
    class Broken(Counting):
        def wait(self, *_: Any) -> None:
            raise RuntimeError("connection reset")

    broken: Any = Broken(open_store(), Counter())
    known = [{"hostname": "a", "pid": 7}, {"hostname": "b", "pid": 8}]
    with pytest.raises(BootstrapError, match=r"has the process of rank 0 \(host a, pid 7\) ended\?"):
        bootstrap.exchange(broken, 1, 2, {}, 5.0, "g", known=known)


def test_many_ranks_are_named_by_their_numbers_alone() -> None:
    known = [{"hostname": "a", "pid": r} for r in range(20)]
    assert rank_list(range(10), known) == "ranks 0-9"
    assert rank_list([2, 1], known) == "rank 1 (host a, pid 1), rank 2 (host a, pid 2)"


def test_the_second_try_after_a_failure_works(open_store: OpenStore) -> None:
    failed = on_ranks([0, 1], lambda r: bootstrap.exchange(open_store(), r, 3, {}, 0.7, "g"))
    assert all(isinstance(x, BootstrapError) for x in failed), failed
    results = exchanged(open_store, 3)
    assert [[c["who"] for c in r[0]] for r in results] == [[0, 1, 2]] * 3


class Counting:
    """A store that counts the calls made on it."""

    def __init__(self, store: Any, calls: Counter[str]) -> None:
        self.store, self.calls = store, calls

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.store, name)


def test_the_store_is_asked_a_number_of_times_that_grows_as_the_ranks_do() -> None:
    shared = dist.HashStore()
    counts: dict[int, int] = {}
    for size in (16, 32, 64):
        calls: Counter[str] = Counter()
        results = exchanged(partial(Counting, shared, calls), size, timeout=60.0)
        assert all(len(r[0]) == size for r in results)
        assert calls["multi_get"] == 1
        counts[size] = sum(calls.values())
    # 5 a rank in the plain case; the rest is room for ranks that come late here, where 64 threads share two cores.
    assert counts[64] < 20 * 64, counts


def test_a_store_that_fails_is_an_error_of_ours(open_store: OpenStore) -> None:
    class Broken(Counting):
        def wait(self, *_: Any) -> None:
            raise RuntimeError("connection reset")

    broken: Any = Broken(open_store(), Counter())
    with pytest.raises(BootstrapError, match=r"'g'.*connection reset"):
        bootstrap.exchange(broken, 1, 2, {}, 5.0, "g")


def test_ctrl_c_ends_the_waiting(tmp_path: Path) -> None:
    code = (
        "import torch.distributed as d, sys\nfrom ringcomm.bootstrap import exchange\n"
        "s = d.TCPStore('127.0.0.1', 0, None, True); print('ready', flush=True)\n"
        "try: exchange(s, 0, 2, {}, 60.0, 'g')\nexcept KeyboardInterrupt: sys.exit(7)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.7)
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 7
    finally:
        child.kill()


def test_the_store_keeps_its_own_time_out() -> None:
    store: Any = dist.HashStore()
    store.set_timeout(timedelta(seconds=77))
    exchanged(lambda: store, 6)
    assert store.timeout == timedelta(seconds=77)


def test_disagreement_names_keys_and_ranks_the_same_on_all() -> None:
    digest = {"memory.slot": "auto", "policy.all_reduce": "aa", "version": "1"}
    cards = [{"digest": dict(digest)} for _ in range(5)]
    bootstrap.check_agreement(cards)
    cards[0]["digest"]["memory.slot"] = "64KiB"
    del cards[3]["digest"]["policy.all_reduce"]
    with pytest.raises(AgreementError) as caught:
        bootstrap.check_agreement(cards)
    text = str(caught.value)
    assert "memory.slot: auto on ranks 1-4, 64KiB on rank 0" in text
    assert "policy.all_reduce: aa on ranks 0-2, 4, (not set) on rank 3" in text
    assert "version" not in text.split(". ", 1)[1]


def test_cores_are_limited_by_the_smallest_quota_on_the_way_up(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    folder = tmp_path / "sys/fs/cgroup/a/b"
    folder.mkdir(parents=True)
    assert host.cpu_quota(tmp_path) is None
    (folder / "cpu.max").write_text("max 100000\n")
    (folder.parent / "cpu.max").write_text("150000 100000\n")
    assert host.cpu_quota(tmp_path) == 1.5
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/c\n")
    v1 = tmp_path / "sys/fs/cgroup/cpu/c"
    v1.mkdir(parents=True)
    (v1 / "cpu.cfs_quota_us").write_text("-1\n")
    (v1 / "cpu.cfs_period_us").write_text("100000\n")
    assert host.cpu_quota(tmp_path) is None
    (v1 / "cpu.cfs_quota_us").write_text("300000\n")
    assert host.cpu_quota(tmp_path) == 3.0


def test_usable_cores_of_a_node_are_the_union_capped_by_the_quotas() -> None:
    one = {"cores": [0, 1], "cpu_quota": None, "cgroup": "/a"}
    assert host.usable_cores([one, {**one, "cores": [1, 2]}]) == 3
    assert host.usable_cores([{**one, "cpu_quota": 1.2}] * 2) == 2
    assert host.usable_cores([{**one, "cores": [0, 1, 2, 3], "cpu_quota": 0.5, "cgroup": c} for c in ("/a", "/b")]) == 1
    assert 1 <= host.usable_cores() <= len(host.facts()["cores"])
    assert json.loads(json.dumps(host.facts())) == host.facts()
