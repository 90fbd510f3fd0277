"""A small explicit-state model checker: breadth first over every interleaving of atomic actions.

A thread is a Python generator that yields one operation at a time and is sent its result. Generators cannot be copied,
so each thread is turned into an automaton on the fly: its local state is (where each frame is suspended, the values of
its locals), found by replaying a history of results, once per edge. The search itself then only looks tables up.
For that to be sound a suspended frame may hold nothing outside its locals: see model_rules.py.
"""

from __future__ import annotations

import types
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from model_operations import (
    ADD,
    ALL,
    ERROR,
    EXCHANGE,
    HELD,
    LOAD,
    MARK,
    NAMES,
    NEEDS_DRAIN,
    READ,
    SNAP,
    STORE,
    TAKE,
    WAIT,
    WAKE,
    WANTED,
    WRITE,
    Body,
    Model,
    Op,
)


class Automaton:
    """The local states of one thread; `ops[i]` is what state i does next, None when it has ended."""

    def __init__(self, body: Callable[[], Body]) -> None:
        self._body = body
        self._history: list[tuple[Any, ...]] = []
        self._index: dict[Any, int] = {}
        self.ops: list[Op | None] = []
        self.next: dict[tuple[int, Any], int] = {}
        self.start = self._state_after(())

    def step(self, state: int, result: Any) -> int:
        key = (state, result)
        found = self.next.get(key)
        if found is None:
            found = self.next[key] = self._state_after((*self._history[state], result))
        return found

    def _state_after(self, history: tuple[Any, ...]) -> int:
        body = self._body()
        op: Op | None
        try:
            op = next(body)
            for result in history:
                op = body.send(result)
        except StopIteration:
            op = None
        key = (op, _where(body))
        if key not in self._index:
            self._index[key] = len(self.ops)
            self.ops.append(op)
            self._history.append(history)
        return self._index[key]


def _where(body: Any) -> tuple[Any, ...]:
    frames = []
    while isinstance(body, types.GeneratorType) and body.gi_frame is not None:
        frame = body.gi_frame
        frames.append((frame.f_code.co_name, frame.f_lasti, tuple(sorted(dict(frame.f_locals).items()))))
        body = body.gi_yieldfrom
    return tuple(frames)


@dataclass
class Result:
    """`problem` is None when every state is fine; otherwise `trace` is a shortest way to the problem."""

    states: int
    problem: str | None = None
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.problem is None:
            return f"{self.states} states, no problem"
        return f"{self.problem} ({self.states} states seen)\n  " + "\n  ".join(self.trace)


class Explorer:
    """One search over one model. State: cells, then the local state of each thread (~i: asleep in i), then buffers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.weak = model.weak
        self.automata = [Automaton(t.body) for t in model.threads]
        self.first_thread = len(model.initial)
        self.first_buffer = self.first_thread + len(self.automata)
        self.problem: str | None = None

    def run(self, limit: int = 3_000_000) -> Result:
        """Explores all. RuntimeError past `limit` states: an unfinished search must not count as a proof."""
        start = tuple(self.model.initial) + tuple(a.start for a in self.automata) + ((),) * len(self.automata)
        index = {start: 0}
        order = [start]
        parent = array("l", [-1])
        sources, targets, good = array("l"), array("l"), []
        at = 0
        while at < len(order):
            state = order[at]
            after = self.successors(state)
            if self.problem is None and not after:
                self.problem = self._wrong_end(state)
                good.append(at)
            if self.problem is not None:
                return self._counterexample(order, parent, at)
            for new in after:
                known = index.get(new)
                if known is None:
                    known = index[new] = len(order)
                    order.append(new)
                    parent.append(at)
                sources.append(at)
                targets.append(known)
            if len(order) > limit:
                raise RuntimeError(f"more than {limit} states: the model is too large to explore")
            at += 1
        stuck = _cannot_reach(good, len(order), sources, targets)
        if stuck is not None:
            self.problem = "livelock: from here on no way of going on ends"
            return self._counterexample(order, parent, stuck)
        return Result(len(order))

    def successors(self, state: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        after: list[tuple[Any, ...]] = []
        plain: list[Op] = []
        first = self.first_thread
        for t, automaton in enumerate(self.automata):
            local = state[first + t]
            if self.weak and state[self.first_buffer + t]:
                after.extend(self._drain_one(state, t))
            if local < 0:
                continue
            op = automaton.ops[local]
            if op is None:
                continue
            if op[0] >= READ:
                plain.append(op)
            self._step(state, t, local, op, after)
        if len(plain) > 1 and not self.weak:
            self._check_race(plain)
        return after

    def _step(self, state: tuple[Any, ...], t: int, local: int, op: Op, after: list[tuple[Any, ...]]) -> None:
        kind, at, value, order = op
        if kind == ERROR:
            self.problem = f"{self.model.threads[t].name}: {value}"
            return
        if self.weak:
            buffer = state[self.first_buffer + t]
            if kind == WRITE or (kind == STORE and order != "seq_cst"):
                new = list(state)
                new[self.first_buffer + t] = (*buffer, (at, value, order == "release"))
                new[self.first_thread + t] = self.automata[t].step(local, None)
                after.append(tuple(new))
                return
            if buffer and (kind in NEEDS_DRAIN or kind == STORE):
                return
            seen = next((v for a, v, _ in reversed(buffer) if a == at), state[at])
        else:
            seen = state[at]
        result = None
        new = list(state)
        if kind in (LOAD, READ):
            result = seen
        elif kind in (STORE, WRITE):
            new[at] = value
        elif kind == EXCHANGE:
            result = seen
            new[at] = value
        elif kind == ADD:
            result = seen
            new[at] = seen + value
        elif kind == TAKE:
            result = seen
            if seen is not HELD and seen is not WANTED:
                new[at] = HELD
        elif kind == MARK:
            result = seen
            if seen is HELD:
                new[at] = WANTED
        elif kind == SNAP:
            new[at] = seen | (1 << t)
            if value is not None:
                new[value] &= ~(1 << t)
        elif kind == WAKE:
            new[at] = 0
        elif kind == WAIT and seen >> t & 1:
            new[self.first_thread + t] = ~local
            after.append(tuple(new))
            return
        new[self.first_thread + t] = self.automata[t].step(local, result)
        if kind == WAKE:
            after.extend(self._wake(new, at, value))
        else:
            after.append(tuple(new))

    def _wake(self, new: list[Any], at: int, count: int) -> list[tuple[Any, ...]]:
        asleep = []
        for t, automaton in enumerate(self.automata):
            local = ~new[self.first_thread + t]
            if local >= 0 and automaton.ops[local][1] == at:  # type: ignore[index]
                asleep.append((t, automaton.step(local, None)))
        chosen = [asleep] if count == ALL or len(asleep) <= count else [[one] for one in asleep]
        after = []
        for some in chosen:
            woken = list(new)
            for t, local in some:
                woken[self.first_thread + t] = local
            after.append(tuple(woken))
        return after

    def _drain_one(self, state: tuple[Any, ...], t: int) -> list[tuple[Any, ...]]:
        buffer = state[self.first_buffer + t]
        after = []
        for i, (at, value, release) in enumerate(buffer):
            if i and (release or any(earlier[0] == at for earlier in buffer[:i])):
                continue
            new = list(state)
            new[at] = value
            new[self.first_buffer + t] = buffer[:i] + buffer[i + 1 :]
            after.append(tuple(new))
        return after

    def _check_race(self, plain: list[Op]) -> None:
        for i, one in enumerate(plain):
            for other in plain[i + 1 :]:
                if one[1] == other[1] and WRITE in (one[0], other[0]):
                    self.problem = f"data race on {self.model.names[one[1]]}"

    def _wrong_end(self, state: tuple[Any, ...]) -> str | None:
        for t, thread in enumerate(self.model.threads):
            local = state[self.first_thread + t]
            if (local < 0 or self.automata[t].ops[local] is not None) and not thread.daemon:
                return f"deadlock: {thread.name} sleeps for ever"
        for what, at, allowed in self.model.must_end:
            if state[at] not in allowed:
                return f"deadlock: all is quiet, but {what} is {state[at]!r}"
        return None

    def _counterexample(self, order: list[tuple[Any, ...]], parent: array[int], at: int) -> Result:
        problem = self.problem
        path = []
        while at >= 0:
            path.append(order[at])
            at = parent[at]
        path.reverse()
        trace = [self._describe(a, b) for a, b in pairwise(path)]
        return Result(len(order), problem, trace)

    def _describe(self, state: tuple[Any, ...], after: tuple[Any, ...]) -> str:
        names = self.model.names
        for t, thread in enumerate(self.model.threads):
            was, now = state[self.first_thread + t], after[self.first_thread + t]
            op = self.automata[t].ops[was if was >= 0 else ~was]
            if was < 0 or op is None:
                continue
            mine: list[tuple[Any, ...]] = []
            self._step(state, t, was, op, mine)
            if after in mine:
                kind, at, value, order = op
                text = f"{thread.name}: {NAMES[kind]} {names[at]}"
                if kind in (STORE, WRITE, EXCHANGE, ADD):
                    text += f" {value!r}" + (f" ({order})" if order not in (None, "seq_cst") else "")
                if kind in (LOAD, READ, EXCHANGE, ADD, TAKE, MARK):
                    text += f" -> {state[at]!r}"
                if kind == WAIT:
                    text += " (asleep)" if now < 0 else " (word has changed)"
                return text
        for t, thread in enumerate(self.model.threads):
            if after in self._drain_one(state, t):
                gone = set(state[self.first_buffer + t]) - set(after[self.first_buffer + t])
                return f"{thread.name}: its store becomes visible: " + ", ".join(
                    f"{names[a]} = {v}" for a, v, _ in gone
                )
        raise AssertionError("a step nobody can have made")


def _cannot_reach(good: list[int], count: int, sources: array[int], targets: array[int]) -> int | None:
    """The first state from which none of `good` can be reached (edges are sources[i] -> targets[i]), or None."""
    starts = array("l", bytes(array("l").itemsize * (count + 1)))
    for target in targets:
        starts[target + 1] += 1
    for i in range(count):
        starts[i + 1] += starts[i]
    before = array("l", bytes(array("l").itemsize * len(targets)))
    fill = starts[:]
    for source, target in zip(sources, targets, strict=True):
        before[fill[target]] = source
        fill[target] += 1
    reached = bytearray(count)
    todo = list(good)
    for state in good:
        reached[state] = 1
    while todo:
        state = todo.pop()
        for i in range(starts[state], starts[state + 1]):
            if not reached[before[i]]:
                reached[before[i]] = 1
                todo.append(before[i])
    missing = reached.find(0)
    return None if missing < 0 else missing
