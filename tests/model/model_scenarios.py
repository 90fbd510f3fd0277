"""Small worlds to explore the protocol in: who talks to whom, with how many slots, with which threads."""

from __future__ import annotations

from dataclasses import replace

import model_poller as poller
import model_protocol as protocol
from model_bugs import Bugs
from model_fifo import Door, Fifo, Lane, Step
from model_operations import Model, exchange, store, write

Move = tuple[str, Fifo, int]  # "send" or "receive", which FIFO, which of its readers


class World:
    """Puts the cells of doorbells, FIFOs and lanes into one model."""

    def __init__(self, weak: bool = False) -> None:
        self.model = Model(weak)

    def door(self, name: str) -> Door:
        return Door(self.model.cell(f"{name}.sleeping"), self.model.cell(f"{name}.word"))

    def fifo(self, name: str, slots: int, writer: Door, *readers: Door) -> Fifo:
        cell = self.model.cell
        return Fifo(
            tuple(cell(f"{name}.line{i}") for i in range(slots)),
            tuple(cell(f"{name}.payload{i}") for i in range(slots)),
            tuple(cell(f"{name}.tail{i}") for i in range(len(readers))),
            writer,
            readers,
        )

    def alone(self, name: str, door: Door, requests: list[list[Move]], bugs: Bugs, failed: int | None = None) -> None:
        """A process with one thread that runs all requests in order."""
        lane = Lane(door, *_steps(requests), done=(), failed=failed)
        self.model.thread(name, lambda: protocol.alone(lane, bugs))

    def lane(
        self,
        name: str,
        door: Door,
        requests: list[list[Move]],
        driver: bool = False,
        failed: int | None = None,
        must_end: bool = True,
    ) -> Lane:
        """A lane shared by the threads of a process. `must_end`: every request has to end as 1, or 2 if it can fail."""
        cell = self.model.cell
        steps, ends = _steps(requests)
        done = tuple(cell(f"{name}.done{i}") for i in range(len(requests)))
        for i, at in enumerate(done if must_end else ()):
            self.model.must_end_as(f"request {i} of {name}", at, *((1, 2) if failed is not None else (1,)))
        lock = cell(f"{name}.lock")
        lane = Lane(
            door,
            steps,
            ends,
            done,
            lock=lock,
            queue=cell(f"{name}.queue"),
            waiters=cell(f"{name}.waiters"),
            parked=cell(f"{name}.parked") if driver else None,
            driver_word=cell(f"{name}.driver_word") if driver else None,
            failed=failed,
        )
        self.model.initial[lock] = lane.start
        return lane

    def driver(self, lane: Lane, bugs: Bugs) -> None:
        self.model.thread("driver", lambda: protocol.drive(lane, bugs), daemon=True)

    def timer(self, lane: Lane, requests: int, bugs: Bugs, ages: bool = True) -> poller.Timer:
        """The poller and its timer, which was set for other work that is over by now. `ages`: what is issued is young
        at first and grows old some time later; else it is old at once."""
        cell = self.model.cell
        timer = poller.Timer(cell("timer.claimed", 1), cell("timer.word"))
        if ages:
            timer = replace(timer, left=cell("timer.left"), now=cell("timer.now"))
            self.model.thread("time", lambda: poller.time_passes(timer, requests))
        self.model.thread("poller", lambda: poller.poll(lane, timer, bugs), daemon=True)
        return timer

    def callers(self, lane: Lane, bugs: Bugs, *names: str) -> None:
        for name in names:
            self.model.thread(name, lambda: protocol.call(lane, bugs))


def _steps(requests: list[list[Move]]) -> tuple[tuple[Step, ...], int]:
    """The steps of all requests on end, each with its message's number; and how many connection ends there are."""
    steps: list[Step] = []
    ends: dict[tuple[str, Fifo], int] = {}
    moved: dict[tuple[str, Fifo], int] = {}
    for number, moves in enumerate(requests):
        for i, (kind, fifo, reader) in enumerate(moves):
            key = (kind, fifo)
            end = ends.setdefault(key, len(ends))
            position = moved.get(key, 0)
            moved[key] = position + 1
            steps.append(Step(kind, fifo, end, position, number, i == 0, i == len(moves) - 1, reader))
    return tuple(steps), len(ends)


def duplex(bugs: Bugs, weak: bool = False, slots: int = 1, messages: int = 2) -> Model:
    """Two processes of one thread; each sends and receives `messages` slots in one request."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    to_b, to_a = world.fifo("AB", slots, a, b), world.fifo("BA", slots, b, a)
    world.alone("a", a, [[("send", to_b, 0), ("receive", to_a, 0)] * messages], bugs)
    world.alone("b", b, [[("send", to_a, 0), ("receive", to_b, 0)] * messages], bugs)
    return world.model


def fan_out(bugs: Bugs, weak: bool = False, slots: int = 1, messages: int = 2) -> Model:
    """One writer, two readers that each take every slot."""
    world = World(weak)
    doors = [world.door(n) for n in "WRS"]
    fifo = world.fifo("W", slots, *doors)
    world.alone("writer", doors[0], [[("send", fifo, 0)] * messages], bugs)
    world.alone("reader r", doors[1], [[("receive", fifo, 0)] * messages], bugs)
    world.alone("reader s", doors[2], [[("receive", fifo, 1)] * messages], bugs)
    return world.model


def _pair(weak: bool, slots: int, kinds: str) -> tuple[World, Door, Door, list[list[Move]], list[list[Move]]]:
    """A process A to be filled with threads, and the requests of both sides. One letter of `kinds` is one request as A
    sees it: r receives a message, s sends one, x does both."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    to_b = world.fifo("AB", slots, a, b) if set(kinds) & set("sx") else None
    to_a = world.fifo("BA", slots, b, a) if set(kinds) & set("rx") else None
    mine: list[list[Move]] = []
    theirs: list[list[Move]] = []
    for kind in kinds:
        out: list[Move] = [("send", to_b, 0)] if to_b and kind in "sx" else []
        back: list[Move] = [("receive", to_a, 0)] if to_a and kind in "rx" else []
        mine.append(out + back)
        theirs.append([("send", f, r) for _, f, r in back] + [("receive", f, r) for _, f, r in out])
    return world, a, b, mine, theirs


def two_callers(bugs: Bugs, weak: bool = False, kinds: str = "rr", slots: int = 1) -> Model:
    """Two threads of A wait for a request each on one lane; B runs both."""
    world, a, b, mine, others = _pair(weak, slots, kinds)
    world.callers(world.lane("A", a, mine), bugs, "caller c", "caller d")
    world.alone("b", b, others, bugs)
    return world.model


def two_groups(bugs: Bugs, weak: bool = False) -> Model:
    """Two threads of A wait in two groups, so in two lanes, at one doorbell; each group has its own peer."""
    world = World(weak)
    a, b, c = (world.door(n) for n in "ABC")
    for peer, door in (("b", b), ("c", c)):
        back = world.fifo(peer + "A", 1, door, a)
        lane = world.lane("A" + peer, a, [[("receive", back, 0)]])
        world.callers(lane, bugs, "caller for " + peer)
        world.alone(peer, door, [[("send", back, 0)]], bugs)
    return world.model


def driver_only(bugs: Bugs, weak: bool = False, kinds: str = "rr", slots: int = 1) -> Model:
    """A thread of A issues async requests and goes away; the driver has to end them."""
    world, a, b, mine, others = _pair(weak, slots, kinds)
    lane = world.lane("A", a, mine, driver=True)

    def issuer() -> protocol.Body:
        i = 0
        while i < len(kinds):
            yield from protocol.issue(lane, bugs)
            i += 1

    world.model.thread("issuer", issuer)
    world.driver(lane, bugs)
    world.alone("b", b, others, bugs)
    return world.model


def issue_then_wait(bugs: Bugs, weak: bool = False, kinds: str = "rr", slots: int = 1) -> Model:
    """One thread issues two async requests and waits for the first only; the driver has to end the second."""
    world, a, b, mine, others = _pair(weak, slots, kinds)
    lane = world.lane("A", a, mine, driver=True)

    def caller() -> protocol.Body:
        first = yield from protocol.issue(lane, bugs)
        yield from protocol.issue(lane, bugs)
        yield from protocol.wait(lane, first, bugs)

    world.model.thread("caller", caller)
    world.driver(lane, bugs)
    world.alone("b", b, others, bugs)
    return world.model


def issue_then_call(bugs: Bugs, weak: bool = False, kinds: str = "rr", slots: int = 1) -> Model:
    """One thread issues an async request, then makes a blocking one, with a driver beside it."""
    world, a, b, mine, others = _pair(weak, slots, kinds)
    lane = world.lane("A", a, mine, driver=True)

    def caller() -> protocol.Body:
        yield from protocol.issue(lane, bugs)
        yield from protocol.call(lane, bugs)

    world.model.thread("caller", caller)
    world.driver(lane, bugs)
    world.alone("b", b, others, bugs)
    return world.model


def small_async(bugs: Bugs, weak: bool = False, kinds: str = "r", ages: bool = True) -> Model:
    """A thread of A issues small async requests and goes away; poller and driver have to end them."""
    world, a, b, mine, others = _pair(weak, len(kinds), kinds)
    lane = world.lane("A", a, mine, driver=True)
    timer = world.timer(lane, len(kinds), bugs, ages)

    def issuer() -> protocol.Body:
        i = 0
        while i < len(kinds):
            yield from poller.issue_small(lane, timer, bugs)
            i += 1

    world.model.thread("issuer", issuer)
    world.driver(lane, bugs)
    world.alone("b", b, others, bugs)
    return world.model


def small_async_then_wait(bugs: Bugs, weak: bool = False, ages: bool = True) -> Model:
    """A thread of A issues a small async request and waits for it, while the poller looks after it too."""
    world, a, b, mine, others = _pair(weak, 1, "r")
    lane = world.lane("A", a, mine, driver=True)
    timer = world.timer(lane, 1, bugs, ages)

    def caller() -> protocol.Body:
        own = yield from poller.issue_small(lane, timer, bugs)
        yield from protocol.wait(lane, own, bugs)

    world.model.thread("caller", caller)
    world.driver(lane, bugs)
    world.alone("b", b, others, bugs)
    return world.model


def caller_and_issuer(bugs: Bugs, weak: bool = False, driver: bool = True) -> Model:
    """One thread waits for a request while another issues an async one and goes away. One request receives, the other
    sends to a peer that needs no answer. Without a driver the async one may stay, if it comes second."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    to_b, to_a = world.fifo("AB", 1, a, b), world.fifo("BA", 1, b, a)
    lane = world.lane("A", a, [[("receive", to_a, 0)], [("send", to_b, 0)]], driver, must_end=driver)
    world.callers(lane, bugs, "caller")

    def issuer() -> protocol.Body:
        yield from protocol.issue(lane, bugs)

    world.model.thread("issuer", issuer)
    if driver:
        world.driver(lane, bugs)
    world.alone("b", b, [[("send", to_a, 0)]], bugs)
    return world.model


def failure_alone(bugs: Bugs, weak: bool = False) -> Model:
    """A's only thread waits for a message that never comes; B's fails the group instead."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    failed = world.model.cell("failed")
    world.alone("a", a, [[("receive", world.fifo("BA", 1, b, a), 0)]], bugs, failed)
    world.model.thread("b", lambda: protocol.fail(failed, (a, b), bugs))
    return world.model


def failure_with_driver(bugs: Bugs, weak: bool = False) -> Model:
    """A has an async request and a waiting caller; B sends what the first needs, then fails the group."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    failed = world.model.cell("failed")
    back = world.fifo("BA", 1, b, a)
    lane = world.lane("A", a, [[("receive", back, 0)]] * 2, driver=True, failed=failed)

    def caller() -> protocol.Body:
        first = yield from protocol.issue(lane, bugs)
        yield from protocol.issue(lane, bugs)
        yield from protocol.wait(lane, first, bugs)

    peer = Lane(b, *_steps([[("send", back, 0)]]), done=())

    def breaking() -> protocol.Body:
        yield from protocol.alone(peer, bugs)
        yield from protocol.fail(failed, (a, b), bugs)

    world.model.thread("caller", caller)
    world.driver(lane, bugs)
    world.model.thread("b", breaking)
    return world.model


def failure_after_kill(bugs: Bugs, weak: bool = False) -> Model:
    """B is killed inside its ring: A's flag is down, the wake never came. A's poller sees it and fails the group."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    failed = world.model.cell("failed")
    back = world.fifo("BA", 2, b, a)
    world.alone("a", a, [[("receive", back, 0)] * 2], bugs, failed)

    def killed() -> protocol.Body:
        yield write(back.payloads[0], 1)
        yield store(back.lines[0], 1)
        yield exchange(a.sleeping, 0)
        yield from protocol.fail(failed, (a,), bugs)

    world.model.thread("b, then a's poller", killed)
    return world.model


def answer_needed(bugs: Bugs, weak: bool = False) -> Model:
    """Two callers on one lane; B sends what the second waits for only after a message that the first sends elsewhere
    when its own request is over. So the first must learn of its end even if the second one brought it about."""
    world = World(weak)
    a, b = world.door("A"), world.door("B")
    to_a, answer = world.fifo("BA", 2, b, a), world.fifo("answer", 1, a, b)
    lane = world.lane("A", a, [[("receive", to_a, 0)]] * 2)
    elsewhere = Lane(a, *_steps([[("send", answer, 0)]]), done=())

    def caller() -> protocol.Body:
        own = yield from protocol.call(lane, bugs)
        if own == 0:
            yield from protocol.alone(elsewhere, bugs)

    world.model.thread("caller c", caller)
    world.model.thread("caller d", caller)
    world.alone("b", b, [[("send", to_a, 0), ("receive", answer, 0), ("send", to_a, 0)]], bugs)
    return world.model
