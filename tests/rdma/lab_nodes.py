"""The RDMA lab that all tests of this folder share, and what they run on its nodes.

A guest takes seconds to minutes to boot, so there is one for the whole test run (the fixture `rdma_lab`). A test
leaves it as it was: links up, nothing lost, no process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

import rdma_lab_machine
import rdma_lab_setup
from rdma_lab import RdmaLab
from rdma_lab_job import Job

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SLOW = 120.0
"""Seconds for a command of a second or two: every instruction may be emulated, on a busy machine."""
SWITCH = "RINGCOMM_TEST_RDMA"


@lru_cache(maxsize=1)
def why_not() -> str:
    """'' or why this machine cannot have a lab. Only what is not installed counts: one that does not come up is a
    failure."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    here = not rdma_lab_machine.why_not_here()
    return rdma_lab_setup.missing(guest=not here)


@contextmanager
def lab(hosts: int = 2, kernels: int = 1) -> Iterator[RdmaLab]:
    """One more lab, for tests that cannot use the common one; skipped, with the reason, where there can be none."""
    if why_not():
        pytest.skip(why_not())
    with RdmaLab(hosts, kernels) as made:
        yield made


def run(
    lab: RdmaLab, node: int | None, *command: str, timeout: float = SLOW, env: Mapping[str, str] | None = None
) -> str:
    """What a command that must end with 0 says."""
    job = lab.start(node, command, timeout, env)
    status = job.wait(timeout + 30)
    assert status == 0, f"{' '.join(command)} on node {node}: status {status}\n{job.text()[-6000:]}"
    return job.text()


def shell(lab: RdmaLab, node: int | None, script: str, timeout: float = SLOW) -> str:
    return run(lab, node, "sh", "-ec", script, timeout=timeout).strip()


def port_state(lab: RdmaLab, node: int) -> str:
    return shell(lab, node, f"cat /sys/class/infiniband/{lab.device(node)}/ports/1/state")


def pair(
    lab: RdmaLab, server: Sequence[str], client: Sequence[str], says: str, timeout: float = SLOW
) -> tuple[str, str]:
    """A program on node 0, and once it has said a word, its other end on node 1; both must end with 0."""
    jobs = [lab.start(0, server, timeout)]
    wait_for(jobs[0], says)
    jobs.append(lab.start(1, client, timeout))
    statuses = [job.wait(timeout + 30) for job in jobs]
    assert statuses == [0, 0], f"statuses {statuses}\n{jobs[0].text()}\n---\n{jobs[1].text()}"
    return jobs[0].text(), jobs[1].text()


def wait_for(job: Job, word: str) -> str:
    """The line in which a job says it; a job that ends first fails the test, at its time limit at the latest."""
    said = ""
    for line in job.stdout:
        said += line
        if word in line:
            return line
    raise AssertionError(f"{word!r} was not said: {said}")
