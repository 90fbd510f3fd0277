"""All ranks of a job find out together where they are and whom they reach. For the tool; groups do not pay for it.

Two exchanges through the store: who I am and where my memory is offered; then whom I could open and, from the first
rank of each machine only, the machine's facts (they are long) and its ways to the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringcomm import bootstrap
from ringcomm.config.values_net import Interfaces
from ringcomm.discover import cores, routes
from ringcomm.discover.machine import Sources, machine
from ringcomm.discover.opening import Offer, can_open
from ringcomm.plain import from_plain, to_plain
from ringcomm.ranges import show_ranges
from ringcomm.topology import Topology, Way
from ringcomm.topology.facts import Machine
from ringcomm.topology.placing import Process, placed

if TYPE_CHECKING:
    from torch.distributed import Store

    from ringcomm.bootstrap import Card

OPEN_SECONDS = 5.0
"""For one peer's memory: its thread answers at once, unless the machine is overloaded."""


def survey(
    store: Store,
    rank: int,
    size: int,
    timeout: float,
    declared: Topology | None = None,
    sources: Sources | None = None,
    wanted: Interfaces | None = None,
) -> Topology:
    """Called by every rank; the same value on all. timeout: seconds, for each exchange.

    declared: the shape of the job if one was declared. wanted: the setting `tcp.interfaces`. Raises BootstrapError
    naming the ranks that did not come.
    """
    here = machine(sources)
    with Offer() as offer:
        mine = _introduction(here, offer, sources or Sources(), wanted)
        cards = bootstrap.exchange(store, rank, size, mine, timeout, "topo/who")
        # Everybody keeps the offer until all have looked, which the second exchange tells.
        found = bootstrap.exchange(store, rank, size, _findings(here, rank, cards), timeout, "topo/found")
    return _topology(cards, found, declared)


def _introduction(here: Machine, offer: Offer, sources: Sources, wanted: Interfaces | None) -> Card:
    chosen = [one for one in here.interfaces if wanted is None or wanted.allow(one.name)]
    return {
        "machine": here.id,
        "pid": os.getpid(),
        "cores": show_ranges(cores.allowed(sources.root)),
        "addresses": routes.offers(chosen) or [a.partition("%")[0] for a in routes.link_local_offers(chosen)],
        "name": offer.name,
        "secret": offer.secret,
    }


def _leaders(cards: Sequence[Card]) -> list[int]:
    """The first rank of each machine, in order; its place here is the machine's number."""
    first: dict[str, int] = {}
    for rank, card in enumerate(cards):
        first.setdefault(card["machine"], rank)
    return list(first.values())


def _findings(here: Machine, rank: int, cards: Sequence[Card]) -> Card:
    # All are tried, whatever their identity says: it only groups candidates.
    opened = [peer for peer, card in enumerate(cards) if can_open(card["name"], card["secret"], OPEN_SECONDS)]
    card: dict[str, Any] = {"opened": show_ranges(opened)}
    leaders = _leaders(cards)
    if rank in leaders:
        card["machine"] = to_plain(here)
        card["ways"] = [
            _way(here, leaders.index(rank), to, cards[peer]) for to, peer in enumerate(leaders) if peer != rank
        ]
    return card


def _way(here: Machine, source: int, target: int, peer: Card) -> dict[str, Any]:
    found = routes.best_route(peer["addresses"], here.interfaces)
    way = Way(source, target)
    if found is not None:
        way = Way(source, target, found.address, found.source, found.interface, found.why_not)
    plain: dict[str, Any] = to_plain(way)
    return plain


def _topology(cards: Sequence[Card], found: Sequence[Card], declared: Topology | None) -> Topology:
    leaders = _leaders(cards)
    numbers = {cards[rank]["machine"]: number for number, rank in enumerate(leaders)}
    processes = [
        Process(numbers[card["machine"]], card["pid"], card["cores"], more["opened"])
        for card, more in zip(cards, found, strict=True)
    ]
    machines = [from_plain(Machine, found[rank]["machine"], f"rank {rank}") for rank in leaders]
    ways = [from_plain(Way, way, f"rank {rank}") for rank in leaders for way in found[rank]["ways"]]
    return placed(processes, machines, declared, ways)
