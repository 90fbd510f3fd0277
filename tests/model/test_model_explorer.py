"""The explorer itself: small programs with known answers must get them."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

import model_fifo
import model_poller
import model_protocol
import model_scenarios
from model_explorer import Explorer, Result
from model_operations import (
    ALL,
    ONE,
    Body,
    Model,
    add,
    bump_and_wake,
    error,
    exchange,
    futex_wait,
    load,
    read,
    snap,
    store,
    write,
)
from model_rules import check_threads_are_plain


def explore(model: Model) -> Result:
    return Explorer(model).run(limit=100_000)


def test_a_lost_update_is_seen_and_fetch_add_has_none() -> None:
    def counting(atomic: bool) -> Result:
        model = Model()
        count = model.cell("count")

        def thread() -> Body:
            if atomic:
                yield add(count, 1)
            else:
                seen = yield load(count)
                yield store(count, seen + 1)

        model.thread("a", thread)
        model.thread("b", thread)
        model.must_end_as("count", count, 2)
        return explore(model)

    assert counting(atomic=True).problem is None
    broken = counting(atomic=False)
    assert broken.problem == "deadlock: all is quiet, but count is 1"
    assert broken.trace == ["a: load count -> 0", "b: load count -> 0", "a: store count 1", "b: store count 1"]


@pytest.mark.parametrize("order, fails", [("seq_cst", False), ("release", True), ("relaxed", True)])
def test_store_buffering_needs_seq_cst(order: str, fails: bool) -> None:
    """Each thread stores its own flag and reads the other's; both reading 0 must be possible below seq_cst only."""
    model = Model(weak=True)
    flags = model.cell("x"), model.cell("y")
    zeros = model.cell("zeros")

    def thread(me: int) -> Body:
        yield store(flags[me], 1, order)
        other = yield load(flags[1 - me])
        if other == 0:
            before = yield add(zeros, 1)
            if before == 1:
                yield error("both read 0")

    model.thread("a", lambda: thread(0))
    model.thread("b", lambda: thread(1))
    assert (explore(model).problem is not None) == fails


@pytest.mark.parametrize("order, fails", [("seq_cst", False), ("release", False), ("relaxed", True)])
def test_a_message_needs_release(order: str, fails: bool) -> None:
    model = Model(weak=True)
    data, ready = model.cell("data"), model.cell("ready")

    def writer() -> Body:
        yield write(data, 7)
        yield store(ready, 1, order)

    def reader() -> Body:
        there = yield load(ready)
        if there:
            got = yield read(data)
            if got != 7:
                yield error("stale data")

    model.thread("w", writer)
    model.thread("r", reader)
    assert (explore(model).problem is not None) == fails


def test_a_thread_sees_its_own_buffered_store() -> None:
    model = Model(weak=True)
    x = model.cell("x")

    def thread() -> Body:
        yield store(x, 1, "relaxed")
        seen = yield load(x)
        if seen != 1:
            yield error("own store not seen")

    model.thread("a", thread)
    assert explore(model).problem is None


def test_two_stores_to_one_location_stay_in_order() -> None:
    model = Model(weak=True)
    x = model.cell("x")

    def thread() -> Body:
        yield store(x, 1, "relaxed")
        yield store(x, 2, "relaxed")

    model.thread("a", thread)
    model.must_end_as("x", x, 2)
    assert explore(model).problem is None


def test_a_data_race_is_named() -> None:
    model = Model()
    data = model.cell("data")

    def reader() -> Body:
        yield read(data)

    def writer() -> Body:
        yield write(data, 1)

    model.thread("r", reader)
    model.thread("w", writer)
    assert explore(model).problem == "data race on data"


def sleepers(count: int, wakes: int, recheck: bool) -> Result:
    """`count` threads sleep until the flag is set; one thread sets it and wakes `wakes` of them."""
    model = Model()
    flag, word = model.cell("flag"), model.cell("word")

    def sleeper() -> Body:
        yield snap(word)
        seen = 0
        if recheck:
            seen = yield load(flag)
        while not seen:
            yield futex_wait(word)
            yield snap(word)
            seen = yield load(flag)

    def waker() -> Body:
        yield store(flag, 1)
        yield bump_and_wake(word, wakes)

    for i in range(count):
        model.thread(f"sleeper {i}", sleeper)
    model.thread("waker", waker)
    return explore(model)


def test_futex_wakes_all_or_one() -> None:
    assert sleepers(2, ALL, recheck=True).problem is None
    assert sleepers(1, ONE, recheck=True).problem is None
    assert "sleeps for ever" in str(sleepers(2, ONE, recheck=True).problem)


def test_a_lost_wake_up_is_a_deadlock() -> None:
    assert "sleeps for ever" in str(sleepers(1, ALL, recheck=False).problem)


def test_a_daemon_may_sleep_at_the_end() -> None:
    for daemon in (True, False):
        model = Model()
        word = model.cell("word")

        def thread(word: int = word) -> Body:
            yield snap(word)
            yield futex_wait(word)

        model.thread("d", thread, daemon=daemon)
        assert (explore(model).problem is None) == daemon


def test_threads_that_circle_without_an_end_are_a_livelock_and_a_fair_way_out_is_not() -> None:
    for exit_exists in (True, False):
        model = Model()
        turn, stop = model.cell("turn"), model.cell("stop")

        def circle(turn: int = turn, stop: int = stop) -> Body:
            stopped = 0
            while not stopped:
                yield exchange(turn, 0)
                stopped = yield load(stop)

        def stopper(stop: int = stop, value: int = int(exit_exists)) -> Body:
            yield store(stop, value)

        model.thread("c", circle)
        model.thread("s", stopper)
        problem = explore(model).problem
        assert problem is None if exit_exists else "livelock" in str(problem)


def test_an_unfinished_search_is_no_proof() -> None:
    model = Model()
    count = model.cell("count")

    def thread() -> Body:
        while True:
            yield add(count, 1)

    model.thread("a", thread)
    with pytest.raises(RuntimeError, match="more than 1000 states"):
        Explorer(model).run(limit=1000)


@pytest.mark.parametrize(
    "module", [model_fifo, model_protocol, model_poller, model_scenarios], ids=lambda m: m.__name__
)
def test_the_threads_keep_their_state_in_locals(module: types.ModuleType) -> None:
    assert check_threads_are_plain(module) == []


@pytest.mark.parametrize(
    "bad", ["for i in range(3):\n        yield i", "x = 1 + (yield 2)", "if (yield 1):\n        pass"]
)
def test_hidden_state_is_refused(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hidden_state.py").write_text(f"def thread():\n    {bad}\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("hidden_state")
    monkeypatch.delitem(sys.modules, "hidden_state")
    assert check_threads_are_plain(module) != []
