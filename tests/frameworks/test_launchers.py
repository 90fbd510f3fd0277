"""The scripts and manifests of docs/launchers do what they say, with stand-ins for the cluster on one machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import page

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "launchers"
SLURM = Path(__file__).parent / "slurm"
LIMIT = 180
LEARNED = "backend ringcomm | learned True | ranks 4"


def files(text: str, kind: str) -> dict[str, str]:
    return {
        block[0]: block[1] for block in re.findall(rf"^```{kind} (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    }


def program(folder: Path) -> None:
    text = (ROOT / "docs" / "frameworks" / "torchrun.md").read_text()
    (folder / "train.py").write_text(files(text, "python")["train.py"])


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run(commands: list[list[str]], folder: Path, environments: list[dict[str, str]]) -> str:
    """All commands at once; their output together. AssertionError with it if one fails."""
    base = page.environment(folder)
    running = [
        subprocess.Popen(c, cwd=folder, env={**base, **e}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for c, e in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(outputs)
    return "\n".join(outputs)


def allocation(script: str, path: str) -> dict[str, str]:
    """What Slurm sets for a batch script from its #SBATCH lines."""
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    assert set(asked) == {"nodes", "ntasks-per-node", "cpus-per-task"}
    return {
        "SLURM_JOB_NODELIST": ",".join(["localhost"] * int(asked["nodes"])),
        "SLURM_NNODES": asked["nodes"],
        "SLURM_NTASKS_PER_NODE": asked["ntasks-per-node"],
        "MASTER_PORT": free_port(),
        "PATH": os.pathsep.join([str(SLURM), path]),
    }


@pytest.mark.parametrize("name", [pytest.param("torchrun.sbatch", marks=pytest.mark.long), "tasks.sbatch"])
@pytest.mark.ci
def test_a_batch_script_trains_on_all_ranks(name: str, tmp_path: Path) -> None:
    script = files((PAGES / "slurm.md").read_text(), "bash")[name]
    (tmp_path / name).write_text(script)
    program(tmp_path)
    output = run([["bash", name]], tmp_path, [allocation(script, page.environment(tmp_path)["PATH"])])
    assert output.count(LEARNED) == 1


def pods(job: dict[str, Any]) -> list[tuple[list[str], dict[str, str]]]:
    """Command and environment of every pod, as the training operator makes them from the manifest."""
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    specs = job["spec"]["pytorchReplicaSpecs"]
    assert list(specs) == ["Master", "Worker"] and specs["Master"]["replicas"] == 1
    containers = [s["template"]["spec"]["containers"][0] for s in specs.values() for _ in range(s["replicas"])]
    assert all(c["name"] == "pytorch" for c in containers)  # the operator looks for this name
    shared = {
        "PET_NNODES": str(len(containers)),
        "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
        "PET_MASTER_ADDR": "localhost",
        "PET_MASTER_PORT": free_port(),
    }
    return [
        (c["command"], {**shared, "PET_NODE_RANK": str(node), **{e["name"]: e["value"] for e in c["env"]}})
        for node, c in enumerate(containers)
    ]


@pytest.mark.long
def test_the_manifest_of_a_job_trains_on_all_ranks(tmp_path: Path) -> None:
    job = yaml.safe_load(files((PAGES / "kubernetes.md").read_text(), "yaml")["job.yaml"])
    program(tmp_path)
    commands, environments = zip(*pods(job), strict=True)
    assert run(list(commands), tmp_path, list(environments)).count(LEARNED) == 1


def test_every_page_is_in_the_index() -> None:
    index = (PAGES / "README.md").read_text()
    assert [p.name for p in PAGES.glob("*.md") if p.stem != "README" and f"({p.name})" not in index] == []
