"""torchrun's elastic agent: a rank dies once, every rank is started again, and the job ends right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ringcomm

ROOT = Path(ringcomm.__file__).resolve().parents[1]

JOB = """
    import json, os, pathlib, signal, sys
    import torch, torch.distributed as dist
    import ringcomm

    folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("ringcomm")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    state = torch.zeros(1)
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        state += float(checkpoint.read_text())
    for step in range(int(state.item()), 6):
        tensor = torch.full((5000,), float(step + rank))
        dist.all_reduce(tensor)
        assert (tensor == step * world + world * (world - 1) / 2).all(), tensor
        state += 1
        if rank == 0:
            checkpoint.write_text(str(state.item()))
        dist.barrier()
        if attempt < 2 and step == 2 * attempt + 1 and rank == attempt % world:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("planted")
    total = torch.ones(1)
    dist.all_reduce(total, group=dist.new_group())
    (folder / f"done{rank}").write_text(json.dumps([attempt, state.item(), total.item()]))
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["kill", pytest.param("raise", marks=pytest.mark.long)])
@pytest.mark.ci
def test_torchrun_starts_all_ranks_again_and_the_job_ends_right(tmp_path: Path, how: str) -> None:
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB))
    options = ["--standalone", "--nproc-per-node=3", "--max-restarts=2", "--monitor-interval=0.1"]
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(job), str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    # Two restarts; the steps that were done before each were not done again.
    assert [json.loads((tmp_path / f"done{rank}").read_text()) for rank in range(3)] == [[2, 6.0, 3.0]] * 3
