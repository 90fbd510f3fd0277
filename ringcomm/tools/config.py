"""`python -m ringcomm config [CONFIG]`: the values in effect, or with --markdown the text of docs/configuration.md."""

from __future__ import annotations

import argparse
import sys

from ringcomm import config, policy
from ringcomm.errors import ConfigError

TRIED = (2, 3, 4, 8, 64)
"""Ranks of one node for which rules are asked for, to warn of holes."""


def show(loaded: config.Config) -> str:
    """Each key with its value and source, then the policy rule by rule."""
    lines = [f"# {line}" for line in loaded.log_lines()]
    for name, value in loaded.values().items():
        lines.append(f"{name + ':':<25}{value:<9} # {loaded.sources.get(name, 'built-in default')}")
    for collective, rules in loaded.policy.items():
        lines.append(f"policy.{collective}:")
        lines += [f"  - {rule.text()}  # {rule.where}" for rule in rules]
    return "\n".join(lines)


def warnings(loaded: config.Config) -> list[str]:
    """Groups that could not be made, or could not make some call: the rules may be meant for others only."""
    refused: dict[str, list[int]] = {}
    for ranks in TRIED:
        try:
            policy.table(loaded, ranks)
        except ConfigError as error:
            refused.setdefault(str(error).replace(f"{ranks} ranks", "so many ranks"), []).append(ranks)
    return [f"groups of {', '.join(map(str, ranks))} ranks will be refused: {text}" for text, ranks in refused.items()]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m ringcomm config", description=__doc__)
    parser.add_argument("config", nargs="?", help="a path or a shipped name; without it what a job here would use")
    parser.add_argument("--markdown", action="store_true", help="print the documentation of every key")
    arguments = parser.parse_args(argv)
    if arguments.markdown:
        print(config.Config().to_markdown(), end="")
        return 0
    try:
        loaded = config.load(arguments.config, source="argument CONFIG")
        print(show(loaded))
        for warning in warnings(loaded):
            print(f"ringcomm config: warning: {warning}", file=sys.stderr)
    except ConfigError as error:
        print(f"ringcomm config: {error}", file=sys.stderr)
        return 2
    return 0
