"""`python -m ringcomm COMMAND ...`: names the commands and hands over."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "run": "run a script or module that asks for gloo on ringcomm instead",
    "bench": "time collectives, check their values, compare backends",
    "verify": "prove schedules right and free of deadlock",
    "explain": "say which rule chooses which schedule for a collective, size and number of ranks",
    "topo": "print this machine, or a job's ranks: GPUs, NICs, cores, which connection each pair would use",
    "rdma": "list RDMA devices and prove each by a message through it and back (needs pyverbs)",
    "config": "print the configuration in effect and where each value came from",
    "dtypes": "print which element types move and which reduce op takes which",
}


def usage() -> str:
    lines = [f"  {name:<9}{text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: python -m ringcomm COMMAND [arguments; -h for help]", "", "commands:", *lines])


def main(argv: list[str]) -> int:
    """Runs one command with the arguments after its name; returns its exit status (2: no such command)."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"ringcomm: no command {argv[0]!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"ringcomm.tools.{argv[0]}").main(argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
