"""`python -m ringcomm config [CONFIG]`: the values in effect, or with --markdown the text of docs/configuration.md."""

from __future__ import annotations

import argparse
import sys

from ringcomm import config
from ringcomm.errors import ConfigError


def show(loaded: config.Config) -> str:
    """Each key with its value and source, then the policy rule by rule."""
    lines = [f"# {line}" for line in loaded.log_lines()]
    for name, value in loaded.values().items():
        lines.append(f"{name + ':':<25}{value:<9} # {loaded.sources.get(name, 'built-in default')}")
    for collective, rules in loaded.policy.items():
        lines.append(f"policy.{collective}:")
        lines += [f"  - {rule.text()}  # {rule.where}" for rule in rules]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m ringcomm config", description=__doc__)
    parser.add_argument("config", nargs="?", help="a path or a shipped name; without it what a job here would use")
    parser.add_argument("--markdown", action="store_true", help="print the documentation of every key")
    arguments = parser.parse_args(argv)
    if arguments.markdown:
        print(config.Config().to_markdown(), end="")
        return 0
    try:
        print(show(config.load(arguments.config, source="argument CONFIG")))
    except ConfigError as error:
        print(f"ringcomm config: {error}", file=sys.stderr)
        return 2
    return 0
