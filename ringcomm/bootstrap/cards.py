"""Exchange of one card per rank through the Store. Opens no connection.

    rank r                          Store                              rank 0
    set card/r (own number)     --> card/1 .. card/n-1 --> waits for all, folds them into one blob
    takes a blob only if it     <-- blob (id, all cards) <-- set
    holds the own number;
    deletes card/r, adds 1 to   --> ack/<id>
    who comes last sets         --> done/<id>          --> all go on; rank 0 deletes blob and ack,
    adds 1 to                   --> gone/<id>              and the last one of all deletes done and gone

With two ranks, rank 1 is always the last to acknowledge and rank 0 the only one that waits for done: no ack, no gone.

Every call of `exchange` draws a fresh number, so neither a restarted rank nor a store that is used again needs a
counter: a blob of another time does not hold this number, and no rank goes on before all have acknowledged the same
blob (with two ranks the one that takes it is all), so a card of a dead process is never believed. While it waits,
rank 0 looks whether
- a rank was restarted: its card has another number; a new blob with a new id is set, until all acknowledge one;
- a rank is through and already makes its next group of this name: its card says so (`after`) and is left alone.
Each rank deletes its own card before it acknowledges, so rank 0 never deletes or misreads a newer one. Rank 0 sets a
card too, once FIRST_WAIT has passed without all others: by it they see that it came, or that it was restarted.
Store calls where all come within FIRST_WAIT: 7 a rank, 9 on rank 0 (n + 7 where the store cannot read several keys at
once); with two ranks 5 and 6; none for a group of one.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from ringcomm.bootstrap.agreement import Card, rank_list
from ringcomm.errors import BootstrapError

if TYPE_CHECKING:
    from torch.distributed import Store

FIRST_WAIT = 0.5
"""Seconds of one blocking wait in the Store; short, for only after it Ctrl-C is seen and other threads get the client.
Later the Store is asked now and then: a blocking wait of TCPStore that times out writes two warnings to the log."""
LONGEST_SLEEP = 0.1
LAST_WORD = 1.0
"""Seconds for which a rank 0 that gives up keeps the store, and so its process: the others look every LONGEST_SLEEP."""
_FEW = 4
_PAIR = 2
_NEVER = "?"

# Per (group, rank) of this process: the id of the last blob it took.
_taken: dict[tuple[str, int], str] = {}
_taken_lock = threading.Lock()


@dataclass
class _Exchange:
    """One call of `exchange`: the store, the deadline and the names of its keys."""

    store: Any
    """A torch.distributed Store; Any, for torch's stubs leave out several of its methods."""
    rank: int
    size: int
    timeout: float
    group: str
    known: Sequence[Card] | None = None

    def __post_init__(self) -> None:
        self.start = time.monotonic()

    def key(self, name: str) -> str:
        return f"ringcomm/{self.group}/{name}"

    def left(self) -> float:
        return self.timeout - (time.monotonic() - self.start)

    def peek(self, name: str) -> str | None:
        """The value now, without waiting: compare_set against a value no key has leaves the key as it is."""
        value = self.store.compare_set(self.key(name), _NEVER, _NEVER).decode()
        return None if value == _NEVER else value

    def put(self, name: str, value: str) -> bool:
        """Sets the key; True if it had a value, which a run that died has left."""
        if self.store.compare_set(self.key(name), "", value).decode() == value:
            return False
        self.store.set(self.key(name), value)
        return True

    def block(self, names: Sequence[str]) -> bool:
        """Lets the Store wait for all keys, for FIRST_WAIT at most; False if they are not there then."""
        seconds = min(FIRST_WAIT, max(0.001, self.left()))
        began = time.monotonic()
        try:
            self.store.wait([self.key(name) for name in names], timedelta(seconds=seconds))
            return True
        except RuntimeError:
            # Stores have no common type for a time-out (FileStore raises a bare RuntimeError): a failure comes early.
            if time.monotonic() - began < 0.9 * seconds:
                raise
            return False

    def there(self, names: Sequence[str]) -> bool:
        return self.store.check([self.key(name) for name in names])

    def turns(self) -> Iterator[None]:
        """Gives a turn at once and then, after ever longer sleeps, more until the deadline."""
        pause = 0.0005
        yield
        while self.left() > 0:
            time.sleep(max(0.0, min(pause, self.left())))
            yield
            pause = min(1.5 * pause, LONGEST_SLEEP)

    def missing(self) -> list[int]:
        """The other ranks whose card is not in the store now."""
        return [r for r in range(self.size) if r != self.rank and not self.there([f"card/{r}"])]

    def failure(self, text: str) -> str:
        return f"group {self.group!r} of {self.size} ranks could not be made within {self.timeout:g} s: {text}"


def exchange(
    store: Store,
    rank: int,
    size: int,
    card: Mapping[str, Any],
    timeout: float,
    group: str,
    known: Sequence[Card] | None = None,
) -> list[Card]:
    """Gives every rank the cards of all ranks, in rank order, each with a fresh random `nonce` (128 bit, hex).

    card: what this rank says of itself, JSON values. timeout: seconds, for the whole call. group: a name that is the
    same on all ranks and not in use by another exchange in this store at the same time. known: the cards of an earlier
    exchange of these ranks, by which errors name hosts and processes too. Raises BootstrapError at the time-out, naming
    group, seconds and the ranks that did not come, or when the store fails.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank is {rank}; allowed are 0 to {size - 1}")
    mine = {**card, "nonce": secrets.token_hex(16)}
    if size == 1:
        return [mine]
    run = _Exchange(store, rank, size, timeout, group, known)
    try:
        return _lead(run, mine) if rank == 0 else _follow(run, mine)
    except BootstrapError:
        raise
    except RuntimeError as error:
        raise BootstrapError(
            f"group {group!r}: the store failed after {timeout - run.left():.1f} s on rank {rank} of {size} "
            f"(has the process of {rank_list([0], known)} ended?): {error}"
        ) from error


def _follow(run: _Exchange, mine: Card) -> list[Card]:
    _put_card(run, mine)
    run.block(["blob"])
    blob: dict[str, Any] | None = None
    for _ in run.turns():
        if blob is not None and run.there([f"done/{blob['id']}"]):
            break
        newest = _own_blob(run, mine["nonce"])
        if newest is None:
            continue  # none, or one of another time: rank 0 has not come yet or is not through with it
        if "error" in newest:
            raise BootstrapError(newest["error"])
        if blob is None or newest["id"] != blob["id"]:
            blob = newest
            if _acknowledge(run, blob["id"]) or run.block([f"done/{blob['id']}"]):
                break
        elif _restarted(run, blob):
            _put_card(run, mine)
    else:
        raise BootstrapError(run.failure(_absent(run, blob)))
    assert blob is not None
    _leave(run, blob["id"])
    return blob["cards"]


def _put_card(run: _Exchange, mine: Card) -> None:
    with _taken_lock:
        after = _taken.get((run.group, run.rank), "")
    run.store.set(run.key(f"card/{run.rank}"), json.dumps({**mine, "after": after}))


def _leave(run: _Exchange, blob_id: str) -> None:
    with _taken_lock:
        _taken[run.group, run.rank] = blob_id
    if run.size == _PAIR:
        if run.rank == 0:
            run.store.delete_key(run.key(f"done/{blob_id}"))
        return
    # `done` must stay until all have seen it: a rank may only begin to wait for it after others have gone on.
    if run.store.add(run.key(f"gone/{blob_id}"), 1) == run.size:
        for name in (f"done/{blob_id}", f"gone/{blob_id}"):
            run.store.delete_key(run.key(name))


def _own_blob(run: _Exchange, nonce: str) -> dict[str, Any] | None:
    """The blob in the store if it holds this rank's number."""
    text = run.peek("blob")
    return json.loads(text) if text is not None and nonce in text else None


def _acknowledge(run: _Exchange, blob_id: str) -> bool:
    """True if this rank is the last."""
    # Before the others can go on: a next exchange must set a new card, not find this one.
    run.store.delete_key(run.key(f"card/{run.rank}"))
    last = run.size == _PAIR or run.store.add(run.key(f"ack/{blob_id}"), 1) == run.size - 1
    if last:
        run.store.set(run.key(f"done/{blob_id}"), "1")
    return last


def _restarted(run: _Exchange, blob: dict[str, Any]) -> bool:
    """Whether a new rank 0 gathers cards again, though this rank has already taken those of the one before."""
    text = run.peek("card/0")
    card = json.loads(text) if text is not None else blob["cards"][0]
    return card["nonce"] != blob["cards"][0]["nonce"] and card["after"] != blob["id"]


def _absent(run: _Exchange, blob: dict[str, Any] | None) -> str:
    """Why this rank waited in vain."""
    if blob is not None:
        return f"{_slow(run)} (seen by rank {run.rank})"
    missing, rank_0 = run.missing(), rank_list([0], run.known)
    text = f"{rank_list(missing, run.known)} did not come" if missing else f"{rank_0} came but did not gather the cards"
    return f"{text} (seen by rank {run.rank})"


def _lead(run: _Exchange, mine: Card) -> list[Card]:
    names = [f"card/{r}" for r in range(1, run.size)]
    late = not run.block(names)
    if late:
        _put_card(run, mine)
    if late and not any(run.there(names) for _ in run.turns()):
        _give_up(run, f"{rank_list(run.missing(), run.known)} did not come", [mine, *_present(run).values()])
    cards = [mine, *_read_cards(run)]
    first, left_over = _publish(run, cards)
    ids = [first]
    if not run.block([f"done/{ids[-1]}"]):
        for _ in run.turns():
            if run.there([f"done/{ids[-1]}"]):
                break
            newer = {
                r: c for r, c in _present(run).items() if c["nonce"] != cards[r]["nonce"] and c["after"] not in ids
            }
            if newer:
                cards = [newer.get(r, card) for r, card in enumerate(cards)]
                ids.append(_publish(run, cards)[0])
        else:
            _give_up(run, _slow(run), cards)
    for name in ("blob", *["card/0"] * (late or left_over), *(f"ack/{i}" for i in ids if run.size > _PAIR)):
        run.store.delete_key(run.key(name))
    _leave(run, ids[-1])
    return [_plain(card) for card in cards]


def _publish(run: _Exchange, cards: list[Card]) -> tuple[str, bool]:
    """Sets the blob; returns its id, and whether there was another."""
    blob = {"id": secrets.token_hex(8), "cards": [_plain(card) for card in cards]}
    return str(blob["id"]), run.put("blob", json.dumps(blob))


def _plain(card: Card) -> Card:
    return {k: v for k, v in card.items() if k != "after"}


def _present(run: _Exchange) -> dict[int, Card]:
    """The other ranks' cards that are in the store now."""
    found = {r: run.peek(f"card/{r}") for r in range(1, run.size)}
    return {r: json.loads(text) for r, text in found.items() if text is not None}


def _read_cards(run: _Exchange) -> list[Card]:
    """The other ranks' cards, all known to be there: one call where the store can."""
    ranks = range(1, run.size)
    if len(ranks) > _FEW and run.store.has_extended_api():
        # A card can vanish if this rank 0 was restarted while the ranks took an earlier blob: multi_get would block.
        before = run.store.timeout
        run.store.set_timeout(timedelta(seconds=max(0.001, run.left())))
        try:
            return [json.loads(text) for text in run.store.multi_get([run.key(f"card/{r}") for r in ranks])]
        finally:
            run.store.set_timeout(before)
    found = _present(run)
    if len(found) < len(ranks):
        _give_up(run, "a rank went on with an earlier rank 0; restart all ranks", found.values())
    return [found[r] for r in ranks]


def _slow(run: _Exchange) -> str:
    """Who has not acknowledged: those whose cards are still there."""
    waiting = [r for r in _present(run) if r != run.rank]
    if waiting:
        return f"{rank_list(waiting, run.known)} came but did not take the cards of the group; stopped or gone since?"
    return "all ranks came but did not take the same cards; was one restarted in between? Restart all ranks"


def _give_up(run: _Exchange, reason: str, cards: Iterable[Card]) -> NoReturn:
    """Raises BootstrapError, and leaves its text in the store for the ranks whose cards are there."""
    text = run.failure(reason)
    run.store.set(run.key("blob"), json.dumps({"error": text, "nonces": [c["nonce"] for c in cards]}))
    # The store may live in this process, which most likely ends now; the interpreter waits for the thread, which holds
    # the store. Nobody waits here.
    threading.Thread(target=_keep, args=(run.store,), name="ringcomm-last-word", daemon=False).start()
    raise BootstrapError(text)


def _keep(_store: Any) -> None:
    time.sleep(LAST_WORD)
