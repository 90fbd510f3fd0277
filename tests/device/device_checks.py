"""Bodies of ranks that look at streams, and what they have in common."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import device_ranks
from ranks import run_ranks

Env = dict[str, "str | None"]
N = 4099
"""Elements of a tensor."""


def finish(wrong: list[str]) -> list[str]:
    dist.destroy_process_group()
    return wrong + device_ranks.native.misuse().splitlines()


def everywhere(body: Any, env: Env, ranks: int = 2) -> None:
    wrong = [line for lines in run_ranks(body, ranks, env=env, timeout=100) for line in lines]
    assert not wrong, "\n".join(wrong)


def expect(wrong: list[str], what: str, got: torch.Tensor, value: float) -> None:
    if got.cpu().tolist() != [value] * got.numel():
        wrong.append(f"{what}: {got.cpu()[:4].tolist()}, not {value}")


def begun(rank: int) -> torch.device:
    """The group has made its first call, in which ranks meet."""
    device = device_ranks.init(rank)
    dist.all_reduce(torch.zeros(N, device=device))
    return device


def late(content: torch.Tensor) -> torch.Tensor:
    """A tensor that gets its content in the current stream, which is held until `native.open()`.

    Until then the host must not touch the device's memory: only copies from tensor to tensor do not wait for a stream.
    """
    made = torch.full_like(content, -7.0)
    device_ranks.native.hold()
    made.copy_(content)
    return made


def used_again(content: torch.Tensor) -> None:
    """Takes what was freed in the current stream and writes it over."""
    for _ in range(8):
        torch.empty_like(content).copy_(content)
