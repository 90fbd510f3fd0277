"""Two nodes with a kernel each, as on two machines: the lab's promises, and a DDP job over what ringcomm finds."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_job import STEPS
from lab_nodes import lab, port_state, shell
from rdma_lab import RdmaLab

JOB = Path(__file__).with_name("ddp_job.py")
ROOT = JOB.parents[2]
# Both kernels are emulated, and DDP imports torch's compiler: 4 minutes on a quiet machine, 16 under load 15.
SECONDS = 1800.0
pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(SECONDS + 600)]


@pytest.fixture(scope="module")
def two() -> Iterator[RdmaLab]:
    with lab(2, kernels=2) as made:
        yield made


def test_two_kernels_are_two_and_reach_each_other_over_both_networks(two: RdmaLab) -> None:
    boots = {shell(two, node, "cat /proc/sys/kernel/random/boot_id") for node in range(2)}
    assert len(boots) == 2
    assert [shell(two, node, "hostname; echo $RDMA_IP") for node in range(2)] == [
        f"host{n}\n10.78.0.{n + 1}" for n in range(2)
    ]
    two.fault("link", 1, "down")
    assert "DOWN" in port_state(two, 1) and "ACTIVE" in port_state(two, 0)
    assert "ACTIVE" in shell(two, 0, "$RDMA_LAB_CTL link 1 up")


def test_ddp_takes_verbs_by_itself_and_trains_as_one_process_does(two: RdmaLab) -> None:
    """Nothing is set: neither the wire nor the device, which has another name on each node."""
    env: dict[str, str | None] = {"PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    env |= {"OMP_NUM_THREADS": "1", "RINGCOMM_DEBUG": "INFO", "RINGCOMM_NET": None, "RINGCOMM_IB_HCA": None}
    jobs = [two.start(node, [sys.executable, str(JOB)], SECONDS, env) for node in range(2)]
    statuses = [job.wait(SECONDS + 60) for job in jobs]
    assert statuses == [0, 0], f"{statuses}\n" + "\n---\n".join(job.text()[-6000:] for job in jobs)
    results: list[dict[str, Any]] = [json.loads((two.out(node) / "result.json").read_text()) for node in range(2)]
    assert len({result["boot"] for result in results}) == 2
    for node, result in enumerate(results):
        said = jobs[node].text()
        assert re.search(rf"net: verbs, the best there is \(net is auto\); by {two.device(node)} port 1", said), said
        assert "2 nodes (host0: 1, host1: 1); over shm+verbs" in jobs[0].text()
        # Two summands have one sum, so there is nothing to round differently.
        assert (result["from the last rank's"], result["from one process's"]) == (0.0, 0.0)
        assert result["from the first"] > 1e-3, "it has not trained"
        # An all_reduce of two ranks sends as much as there is.
        payload = 4 * result["parameters"] * STEPS
        sent = result["sent"]
        assert payload < sent["rdma"] < 1.05 * payload, result
        assert sent["packets"] > payload / 4096 and sent["tcp"] < payload / 100, result
