"""First to run, seconds: the package is installed, two ranks find each other and add up a tensor."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ranks import run_ranks


def add_up(rank: int, world: int) -> tuple[str, list[float]]:
    import ringcomm  # noqa: F401 - makes the name known where the package is not installed

    dist.init_process_group("ringcomm")
    tensor = torch.arange(4.0) + 10 * rank
    dist.all_reduce(tensor)
    name = dist.get_backend()
    dist.destroy_process_group()
    return name, tensor.tolist()


def test_two_ranks_all_reduce() -> None:
    assert run_ranks(add_up, 2) == [("ringcomm", [10.0, 12.0, 14.0, 16.0])] * 2
