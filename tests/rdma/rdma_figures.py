"""Figures of the RDMA tests, for people: build/rdma_figures.json holds those of the last run. Nothing is asserted."""

from __future__ import annotations

import json
from pathlib import Path

from rdma_lab import RdmaLab

FILE = Path(__file__).resolve().parents[2] / "build" / "rdma_figures.json"
_found: dict[str, str] = {}


def record(lab: RdmaLab, what: str, value: float, unit: str) -> None:
    _found[what] = f"{value:.4g} {unit}"
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps({"on": lab.described, **_found}, indent=1) + "\n")
