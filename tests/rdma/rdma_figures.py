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


def repetitions(lab: RdmaLab, program: str, size: int) -> int:
    """How often perftest's program did its thing in MEASURED seconds.

    Its own averages come from a cycle counter that is not a good one in an emulated machine.
    """
    seconds = str(MEASURED + 2 * MARGIN)
    options = ["-s", str(size), "-D", seconds, "-f", str(MARGIN), "-F", *PATIENT]
    said = ends(lab, program, *options, says="Waiting for client")[1]
    row = re.search(rf"^ {size}\s+(\d+)\s", said, re.M)
    assert row and int(row[1]) > 0, said
    return int(row[1])


def write_bandwidth(lab: RdmaLab, size: int) -> tuple[float, int]:
    """(MB/s, how many writes) of RDMA writes of one queue pair from node 1 to node 0."""
    writes = repetitions(lab, "ib_write_bw", size)
    return writes * size / MEASURED / 1e6, writes


def write_latency(lab: RdmaLab, size: int) -> float:
    """Microseconds one way, the mean: half of a write and its answer."""
    return MEASURED * 1e6 / repetitions(lab, "ib_write_lat", size) / 2
