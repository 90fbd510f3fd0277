"""Figures of the RDMA tests, for people: build/rdma_figures.json holds those of the last run. Nothing is asserted.

They are of an emulated machine, most likely: good for ratios of the same boot only.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from lab_nodes import pair
from rdma_lab import RdmaLab

FILE = Path(__file__).resolve().parents[2] / "build" / "rdma_figures.json"
MEASURED, MARGIN = 2, 1
"""Seconds of ib_write_bw that count, and before and after them."""
PATIENT = ["-u", "18"]
"""Ours (`verbs.timeout`). With perftest's own 14 a guest that pauses is taken for a lost packet, and rxe breaks."""
_found: dict[str, str] = {}


def record(lab: RdmaLab, what: str, value: float, unit: str) -> None:
    _found[what] = f"{value:.4g} {unit}".strip()
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps({"on": lab.described, **_found}, indent=1) + "\n")


def ends(lab: RdmaLab, program: str, *options: str, says: str) -> tuple[str, str]:
    """Both ends of a program of ibverbs-utils or perftest; the client dials the first node over TCP."""
    # Line by line: else nothing is said into a pipe before the end.
    first, second = [["stdbuf", "-oL", program, "-d", lab.device(n)] for n in range(2)]
    index = "-g" if program.startswith("ibv_") else "-x"
    first += [index, str(lab.gid(0)), *options]
    second += [index, str(lab.gid(1)), *options, lab.address(0)]
    return pair(lab, first, second, says)


def write_bandwidth(lab: RdmaLab, size: int) -> tuple[float, int]:
    """(MB/s, how many writes) of RDMA writes of one queue pair from node 1 to node 0."""
    seconds = str(MEASURED + 2 * MARGIN)
    options = ["-s", str(size), "-D", seconds, "-f", str(MARGIN), "-F", *PATIENT]
    said = ends(lab, "ib_write_bw", *options, says="Waiting for client")[1]
    # Its own averages come from a cycle counter that is not a good one in an emulated machine.
    row = re.search(rf"^ {size}\s+(\d+)\s", said, re.M)
    assert row, said
    return int(row[1]) * size / MEASURED / 1e6, int(row[1])


def write_latency(lab: RdmaLab, size: int) -> float:
    """Microseconds one way, typical, as ib_write_lat has it."""
    options = ["-s", str(size), "-n", "1000", "-F", *PATIENT]
    said = ends(lab, "ib_write_lat", *options, says="Waiting for client")[1]
    row = re.search(rf"^ {size}\s+1000\s+(\S+)\s+(\S+)\s+(\S+)", said, re.M)
    assert row, said
    return float(row[3])
