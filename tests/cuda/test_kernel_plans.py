"""Every schedule that users run, by the kernel interpreter compiled for the host: the bits of the host's interpreter.

Ranks, blocks and the threads of a block are threads of one process; plain and low latency FIFOs, in place and apart,
even and uneven. It needs no GPU, and shows nothing of a GPU's memory model.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import native
from ringcomm.program.ops import Program
from ringcomm.program.pack import pack
from ringcomm.schedules import BUILT_IN, build_all, roots

RUNNER = native.Program("cuda_kernel_test", "address", native.TESTS / "cuda_kernel_test.cpp")
RANKS = (1, 2, 3, 4, 8)
HIERARCHICAL = (
    ("all_reduce", "hierarchical(two_shot,ring)@2x2", 4),
    ("all_reduce", "hierarchical(ring,tree)@2x4", 8),
    ("broadcast", "hierarchical(one_shot,chain)@2x3", 6),
    ("all_gather", "hierarchical(ring,ring)@2x2", 4),
    ("reduce_scatter", "hierarchical(ring,ring)@2x2", 4),
)


def plans() -> dict[str, tuple[Program, ...]]:
    """Name to programs of all ranks; of rooted collectives the first and the last root."""
    found = {}
    for name, schedule in BUILT_IN.items():
        for collective in schedule.collectives:
            for ranks in RANKS:
                for root in {r: None for r in (roots(collective, ranks)[0], roots(collective, ranks)[-1])}:
                    label = f"{collective.name} {name} at {ranks} ranks, root {root}"
                    found[label] = build_all(collective, name, ranks, root)
    for collective_name, name, ranks in HIERARCHICAL:
        root = roots(collective_name, ranks)[-1]
        found[f"{collective_name} {name}"] = build_all(collective_name, name, ranks, root)
    return found


@pytest.mark.ci
def test_every_schedule_gives_the_hosts_bits(tmp_path: Path) -> None:
    todo = plans()
    assert len(todo) > 60
    words = []
    for programs in todo.values():
        words.append(np.array([len(programs)], dtype=np.int32))
        for program in programs:
            table = pack(program)
            words += [np.array([len(table)], dtype=np.int32), table]
    file = tmp_path / "plans"
    file.write_bytes(np.concatenate(words).tobytes())
    assert native.build([RUNNER])
    environment = {**os.environ, **native.SANITIZER_OPTIONS}
    done = subprocess.run([RUNNER.binary, file], env=environment, capture_output=True, text=True, timeout=500)
    lines = done.stdout.splitlines()
    failed = list(todo)[int(lines[-1].split()[-1])] if lines and lines[-1].startswith("plan ") else "?"
    assert done.returncode == 0, f"{failed}: {done.stderr}"
    assert lines[-1] == f"{len(todo)} plans"
