"""The outputs in docs/topology.md, from saved machines; `python tests/topology/topology_page.py` writes them anew.

saved/one_machine.json was saved by a job of four ranks on a two-core virtual machine. saved/two_servers.json is what
discovery makes of two fake trees (fake_machine.gpu_server), as a test checks.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import fake_machine as fake
from ringcomm.discover.machine import machine
from ringcomm.tools import topo
from ringcomm.topology import Topology, Way
from ringcomm.topology.placing import Process, placed

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "topology.md"
SAVED = Path(__file__).parent / "saved"
_BLOCK = re.compile(r"(<!-- output of topo --load (\w+)\.json -->\n```\n).*?(```\n)", re.DOTALL)


def two_servers(folder: Path) -> Topology:
    """Four ranks on each of two fake GPU servers, the second with a slower port; folder: where their trees go."""
    rates = "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)"
    machines = [machine(fake.gpu_server(folder / str(n), n, rate)) for n, rate in enumerate(rates)]
    cores = ["0-3,16-19", "4-7,20-23", "8-9,24-25", "10-11,26-27"]
    ranks = [Process(n, 4100 + i, cores[i], f"{4 * n}-{4 * n + 3}") for n in range(2) for i in range(4)]
    ends = ("203.0.113.10", "203.0.113.11")
    return placed(ranks, machines, None, [Way(n, 1 - n, ends[1 - n], ends[n], "eth1") for n in range(2)])


def with_outputs(page: str) -> str:
    """The page with every block filled from the file that the comment above it names."""
    return _BLOCK.sub(
        lambda found: found[1] + topo.text(Topology.load(SAVED / f"{found[2]}.json")) + "\n" + found[3], page
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as trees:
        two_servers(Path(trees)).save(SAVED / "two_servers.json")
    PAGE.write_text(with_outputs(PAGE.read_text()))
