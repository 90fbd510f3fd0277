"""`python -m ringcomm topo`: this machine, or under a launcher (torchrun) the whole job, in the words people know."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from ringcomm import config
from ringcomm.config import declared
from ringcomm.discover import routes
from ringcomm.discover.machine import machine
from ringcomm.errors import RingcommError
from ringcomm.ranges import show_ranges
from ringcomm.tools.launched import wrong_variable
from ringcomm.tools.topo_machine import legend, machine_lines
from ringcomm.tools.topo_ranks import rank_lines
from ringcomm.topology import Topology
from ringcomm.topology.asymmetry import asymmetries
from ringcomm.topology.reach import grouped

EPILOG = "Under a launcher every rank runs it and rank 0 prints: torchrun --nproc-per-node 4 -m ringcomm topo"


def main(argv: list[str]) -> int:
    """Prints; returns 2 where a file or the configuration is refused, or ranks do not come."""
    parser = argparse.ArgumentParser("python -m ringcomm topo", description=__doc__, epilog=EPILOG)
    parser.add_argument("--json", action="store_true", help="the topology, connections and asymmetries as JSON")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the topology for --load and topology.file")
    parser.add_argument("--load", type=Path, metavar="FILE", help="show a saved topology instead of looking")
    parser.add_argument("--config", help="a path or a shipped name; without it what a job here would use")
    parser.add_argument("--timeout", type=_seconds, default=60.0, help="seconds to wait for all ranks (default 60)")
    arguments = parser.parse_args(argv)
    try:
        loaded = config.load(arguments.config, source="--config")
        found, head = _found(arguments, loaded)
        if found is None:
            return 0
        if arguments.save:
            found.save(arguments.save)
    except (RingcommError, ValueError, OSError) as error:
        print(f"ringcomm topo: {error}", file=sys.stderr)
        return 2
    how = loaded.connections.across, loaded.net
    print(json.dumps(as_json(found, *how), indent=1) if arguments.json else text(found, head, *how))
    return 0


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0
    if not 0 < found <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed are seconds above 0, at most 1e6")
    return found


def text(found: Topology, head: str = "", across: str = "auto", net: str = "auto") -> str:
    """The page for people. across: the setting `connections.across`; net: the setting `net`."""
    lines = [head] if head else []
    for one in found.machines:
        lines += machine_lines(one)
    if found.ranks:
        lines += rank_lines(found, across, net)
    uneven = asymmetries(found)
    lines += ["asymmetric: " + line for line in uneven] or ["asymmetric links: none seen"]
    return "\n".join([*lines, "", *legend(found)])


def as_json(found: Topology, across: str = "auto", net: str = "auto") -> dict[str, Any]:
    """What `--json` prints; `topology` alone is what `--save` writes."""
    return {
        "topology": found.to_json(),
        "connections": [
            {
                "kind": answer.kind,
                "proved": answer.proved,
                "why": answer.why,
                "pairs": [{"reader": reader, "writers": show_ranges(writers)} for reader, writers in pairs.items()],
            }
            for answer, pairs in grouped(found, across, net).items()
        ],
        "asymmetric": asymmetries(found),
    }


def _found(arguments: argparse.Namespace, loaded: config.Config) -> tuple[Topology | None, str]:
    """(the topology, a line about where it is from); None on the ranks that have nothing to print."""
    if arguments.load:
        return Topology.load(arguments.load), ""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _of_job(loaded, arguments.timeout)
    return Topology(machines=(machine(),)), ""


def _of_job(loaded: config.Config, timeout: float) -> tuple[Topology | None, str]:
    from torch.distributed import DistError, rendezvous

    from ringcomm.bootstrap.survey import survey

    if wrong := wrong_variable():
        raise RingcommError(wrong)
    join: Callable[..., Any] = rendezvous
    try:
        store, rank, size = next(join("env://", timeout=timedelta(seconds=timeout)))
    except DistError as error:
        raise RingcommError(f"the store of the job cannot be reached: {error}") from None
    members = range(size)
    found = survey(store, rank, size, timeout, declared.of_group(loaded, members), wanted=loaded.tcp.interfaces)
    # The store may live in rank 0, which must not end before the others have read all of it.
    if rank != 0:
        store.set(f"topo/read/{rank}", "")
    else:
        with contextlib.suppress(DistError):  # who ended meanwhile says why
            store.wait([f"topo/read/{other}" for other in range(1, size)], timedelta(seconds=timeout))
    warning = routes.master_warning(os.environ.get("MASTER_ADDR", ""))
    lines = [declared.log_line(loaded, members), f"warning: {warning}" if warning else ""]
    return (found if rank == 0 else None), "\n".join(filter(None, lines))
