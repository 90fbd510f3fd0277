"""An ordinary job started by torchrun on each of two hosts, whose processes are numbered alike, as on real machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from faulty import ROOT
from lab_ranks import lab
from net_lab import Lab

JOB = Path(__file__).parent / "net_job.py"


def launched(made: Lab, folder: Path, backend: str, per_host: int, port: int, **env: str) -> list[Any]:
    """Results by rank."""
    folder.mkdir()
    processes = []
    for host in range(made.hosts):
        options = [f"--nnodes={made.hosts}", f"--node-rank={host}", f"--nproc-per-node={per_host}"]
        options += [f"--master-addr={made.address(0)}", f"--master-port={port}"]
        names = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "JOB_BACKEND": backend}
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(JOB), str(folder)]
        processes.append(made.start(host, command, env={**os.environ, **names, **env}, stderr=subprocess.PIPE))
    errors = [process.communicate(timeout=240)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * made.hosts, "\n".join(errors)
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(made.hosts * per_host)]


def parameters(folder: Path) -> list[torch.Tensor]:
    found: list[torch.Tensor] = torch.load(folder / "parameters-0.pt")
    return found


@pytest.mark.parametrize("per_host", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.ci
def test_training_on_two_hosts_by_torchrun_is_that_of_gloo(tmp_path: Path, per_host: int) -> None:
    with lab(2, own_pids=True) as made:
        env = {"RINGCOMM_DEBUG": "INFO", "RINGCOMM_DEBUG_FILE": str(tmp_path / "log-%r")}
        results = {
            backend: launched(made, tmp_path / backend, backend, per_host, port, **env)
            for port, backend in ((29500, "gloo"), (29501, "ringcomm"))
        }
    for found in results.values():
        for one in found:
            assert one["agree"], "all ranks hold the same parameters"
            assert [name[0] for name in one["names"]] == ["host0"] * per_host + ["host1"] * per_host
    for ours, theirs in zip(parameters(tmp_path / "ringcomm"), parameters(tmp_path / "gloo"), strict=True):
        if per_host == 1:
            assert torch.equal(ours, theirs), "two summands have one sum"
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    log = (tmp_path / "log-0").read_text()
    assert "net: tcp, verbs is not usable: host0, host1: " in log  # namespaces have no RDMA, whatever the machine has
    assert f" (net is auto); over eth0: {Lab.address(0)} port " in log
    assert f"to {Lab.address(1)} of rank {per_host} (host1)" in log and log.count("net: tcp") == 1
