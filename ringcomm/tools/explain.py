"""`python -m ringcomm explain all_reduce 1MiB --ranks 4`: which rule chooses which schedule, and why not the others."""

from __future__ import annotations

import argparse
import sys

from ringcomm import config
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
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--config", help="a path or a shipped name; without it what a job here would use")
    arguments = parser.parse_args(argv)
    if arguments.ranks < 1 or arguments.nodes < 1:
        parser.error(f"--ranks is {arguments.ranks} and --nodes is {arguments.nodes}; both must be at least 1")
    try:
        loaded = config.load(arguments.config)
        print(explain(loaded, arguments.collective, arguments.bytes, arguments.ranks, arguments.nodes))
    except RingcommError as error:
        print(f"ringcomm explain: {error}", file=sys.stderr)
        return 2
    return 0
