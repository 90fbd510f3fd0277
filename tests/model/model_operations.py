"""What a thread of a model can do, one atomic action each, and the model they make up.

Memory: every operation is atomic and in order (sequential consistency), and two threads that are both about to touch
one plain location, one of them writing, are a data race. C++ promises that a program whose atomics are all seq_cst and
that has no such race behaves like this on every machine. With `weak=True` plain, relaxed and release stores wait in a
buffer of their thread and become visible later: relaxed and plain ones in any order between locations, a release store
after all earlier ones. Everything seq_cst, read-modify-write or a system call first lets the buffer drain.

Futex words are modelled without counting: the word holds the set of threads whose snapshot is still current. That
is exact as long as 2^32 bumps do not fall between a snapshot and its wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any

LOAD, STORE, EXCHANGE, ADD, TAKE, MARK, SNAP, WAIT, WAKE, ERROR, READ, WRITE = range(12)
NAMES = "load store exchange add take mark snap futex_wait bump_and_wake error read write".split()  # noqa: SIM905
NEEDS_DRAIN = frozenset((EXCHANGE, ADD, TAKE, MARK, WAIT, WAKE))
HELD, WANTED = "held", "wanted"  # what a lock holds instead of the state it guards
ONE, ALL = 1, 99

Op = tuple[int, int, Any, Any]
Body = Generator[Op, Any, Any]


def load(at: int) -> Op:
    return (LOAD, at, None, None)


def store(at: int, value: Hashable, order: str = "seq_cst") -> Op:
    """`order`: seq_cst, release or relaxed."""
    return (STORE, at, value, order)


def exchange(at: int, value: Hashable) -> Op:
    return (EXCHANGE, at, value, None)


def add(at: int, value: int) -> Op:
    """fetch_add: gives the old value."""
    return (ADD, at, value, None)


def take(at: int) -> Op:
    """Compare-and-swap of a lock from free to held: gives the guarded state, or HELD / WANTED."""
    return (TAKE, at, None, None)


def mark(at: int) -> Op:
    """Compare-and-swap of a lock from held to wanted: gives what was there."""
    return (MARK, at, None, None)


def snap(at: int, forget: int | None = None) -> Op:
    """v = load(futex word). `forget`: a word whose snapshot the thread will not use again (saves states)."""
    return (SNAP, at, forget, None)


def futex_wait(at: int) -> Op:
    """Sleep if the word is still what the last snap saw; no time limit."""
    return (WAIT, at, None, None)


def bump_and_wake(at: int, count: int = ALL) -> Op:
    """futex word += 1, then futex_wake, as one action: a thread that goes to sleep between the two would only be woken
    once more than it needs."""
    return (WAKE, at, count, None)


def read(at: int) -> Op:
    """A plain load (race checked)."""
    return (READ, at, None, None)


def write(at: int, value: Hashable) -> Op:
    """A plain store (race checked)."""
    return (WRITE, at, value, None)


def error(text: str) -> Op:
    """The thread has seen something that must not happen."""
    return (ERROR, -1, text, None)


@dataclass
class Thread:
    name: str
    body: Callable[[], Body]
    daemon: bool = False  # may be asleep when everything is over


class Model:
    """Named locations with their first values, threads, and what must hold when nothing can move any more."""

    def __init__(self, weak: bool = False) -> None:
        self.names: list[str] = []
        self.initial: list[Any] = []
        self.threads: list[Thread] = []
        self.must_end: list[tuple[str, int, frozenset[Any]]] = []
        self.weak = weak

    def cell(self, name: str, value: Hashable = 0) -> int:
        self.names.append(name)
        self.initial.append(value)
        return len(self.names) - 1

    def thread(self, name: str, body: Callable[[], Body], daemon: bool = False) -> None:
        self.threads.append(Thread(name, body, daemon))

    def must_end_as(self, what: str, at: int, *allowed: Hashable) -> None:
        self.must_end.append((what, at, frozenset(allowed)))
