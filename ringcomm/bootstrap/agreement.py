"""Whether the ranks of a group agree: the comparison of their cards. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ringcomm.errors import AgreementError

Card = dict[str, Any]
"""What a rank says of itself: JSON values."""


def check_agreement(cards: Sequence[Card]) -> None:
    """Compares the `digest` (key -> text, as Config.digest_parts gives it) of all cards.

    Raises AgreementError naming each key that differs and the ranks that have each value, most ranks first; the text
    depends on the cards only, so all ranks raise the same one.
    """
    if all(card["digest"] == cards[0]["digest"] for card in cards):
        return
    differ = []
    for name in sorted({name for card in cards for name in card["digest"]}):
        holders: dict[str, list[int]] = {}
        for rank, card in enumerate(cards):
            holders.setdefault(card["digest"].get(name, "(not set)"), []).append(rank)
        if len(holders) > 1:
            sides = sorted(holders.items(), key=lambda side: (-len(side[1]), side[1]))
            differ.append(f"{name}: " + ", ".join(f"{value} on {rank_list(ranks)}" for value, ranks in sides))
    if differ:
        raise AgreementError(
            "the ranks of this group were started with different settings or versions; give all the same. "
            + "; ".join(differ)
        )


_MOST_NAMED = 8


def rank_list(ranks: Iterable[int], known: Sequence[Card] | None = None) -> str:
    """'rank 3', 'ranks 0, 2-5'; where their cards are known and they are few 'rank 3 (host a, pid 12)', ..."""
    ranks = list(ranks)
    if known is not None and 0 < len(ranks) <= _MOST_NAMED:
        return ", ".join(f"rank {r} (host {known[r]['hostname']}, pid {known[r]['pid']})" for r in sorted(ranks))
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    count = sum(map(len, runs))
    return f"rank{'s' * (count != 1)} " + ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
