"""How the ranks of a group find each other before there is a connection: cards, agreement, ports and keys."""

from __future__ import annotations

from ringcomm.bootstrap.agreement import Card, check_agreement
from ringcomm.bootstrap.cards import exchange

__all__ = ["Card", "check_agreement", "exchange"]
