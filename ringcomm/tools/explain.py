"""`python -m ringcomm explain all_reduce 1MiB --ranks 4`: which rule chooses which schedule, and why not the others."""

from __future__ import annotations

import argparse
import sys

from ringcomm import config
from ringcomm.config import declared
from ringcomm.config.values import parse_bytes
from ringcomm.errors import RingcommError
from ringcomm.explain import explain
from ringcomm.schedules.shapes import evenly, parse, places_of


def nbytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; allowed are 65536, 64KiB, 64kB, 1MiB, ...") from None


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m ringcomm explain", description=__doc__)
    parser.add_argument("collective", choices=config.COLLECTIVES)
    parser.add_argument("bytes", type=nbytes, help="the whole message, such as 64KiB")
    parser.add_argument("--ranks", type=int, help="may be left out where --nodes is a shape")
    parser.add_argument(
        "--nodes",
        help="how many, or a shape such as 3+1 or [0,2|1,3] (default: as the configuration declares them, else one)",
    )
    parser.add_argument("--config", help="a path or a shipped name; without it what a job here would use")
    arguments = parser.parse_args(argv)
    try:
        ranks, nodes = _group(parser, arguments)
        loaded = config.load(arguments.config, source="--config")
        placed = nodes or declared.nodes_of(loaded, range(ranks))
        print(explain(loaded, arguments.collective, arguments.bytes, ranks, placed))
    except RingcommError as error:
        print(f"ringcomm explain: {error}", file=sys.stderr)
        return 2
    return 0


def _group(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[int, tuple[int, ...] | None]:
    """The number of ranks, and each one's node if that is given."""
    ranks, nodes = arguments.ranks, arguments.nodes
    counted = nodes is None or nodes.isdecimal()
    if counted and ranks is None:
        parser.error("give --ranks, or --nodes as a shape such as 2x4")
    if ranks is not None and ranks < 1:
        parser.error(f"--ranks is {ranks}; it must be at least 1")
    if nodes is None:
        return ranks, None
    if counted:
        if not 1 <= int(nodes) <= ranks:
            parser.error(f"--nodes is {nodes}; it must be from 1 to the number of ranks, {ranks}")
        return ranks, evenly(ranks, int(nodes))
    placed = places_of(parse(nodes))
    if ranks not in (None, len(placed)):
        parser.error(f"--nodes {nodes} has {len(placed)} ranks, but --ranks is {ranks}; one of them is enough")
    return len(placed), placed
