"""`python -m ringcomm explain all_reduce 1MiB --ranks 4`: which rule chooses which schedule, and why not the others."""

from __future__ import annotations

import argparse
import sys

from ringcomm import config, config_topology
from ringcomm.errors import RingcommError
from ringcomm.explain import explain
from ringcomm.values import parse_bytes


def nbytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; allowed are 65536, 64KiB, 64kB, 1MiB, ...") from None


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m ringcomm explain", description=__doc__)
    parser.add_argument("collective", choices=config.COLLECTIVES)
    parser.add_argument("bytes", type=nbytes, help="the whole message, such as 64KiB")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--nodes", type=int, help="default: those the configuration declares for the ranks, else 1")
    parser.add_argument("--config", help="a path or a shipped name; without it what a job here would use")
    arguments = parser.parse_args(argv)
    for name in ("ranks", "nodes"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            parser.error(f"--{name} is {value}; it must be at least 1")
    try:
        loaded = config.load(arguments.config)
        nodes = arguments.nodes or config_topology.node_count(loaded, range(arguments.ranks)) or 1
        print(explain(loaded, arguments.collective, arguments.bytes, arguments.ranks, nodes))
    except RingcommError as error:
        print(f"ringcomm explain: {error}", file=sys.stderr)
        return 2
    return 0
