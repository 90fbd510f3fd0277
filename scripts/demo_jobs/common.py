"""What the demo's jobs share: arguments, progress, average losses, digests, time of communication, the result file.

Nothing here knows a backend: the name is an argument and only `init_process_group` sees it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

PROFILED_STEPS = 5


def arguments(text: str, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--backend", required=True, help="name given to init_process_group")
    parser.add_argument("--json", type=Path, help="where rank 0 writes the result")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps (default: %(default)s)")
    return parser.parse_args()


class Job:
    """One training run: started before the model is made, finished with the numbers it reached."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(args.seed)
        self.name, self.args = name, args
        self.start = time.perf_counter()
        dist.init_process_group(args.backend)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.losses: list[torch.Tensor] = []

    def train(self, step: Callable[[int], torch.Tensor]) -> None:
        """Calls `step(i)` (forward, backward, optimizer; returns this rank's loss) for each i; rank 0 tells how far."""
        every = max(1, self.args.steps // 5)
        for i in range(self.args.steps):
            self.losses.append(step(i).detach())
            if self.rank == 0 and (i + 1) % every == 0:
                seconds = time.perf_counter() - self.start
                loss = self.losses[-1].item()
                print(f"  step {i + 1:4d}/{self.args.steps}  loss on rank 0 {loss:.4f}  {seconds:6.1f} s", flush=True)

    def finish(self, parameters: Iterable[torch.Tensor], step: Callable[[int], torch.Tensor], **reached: Any) -> None:
        """Writes the result: average losses, a digest of every rank's parameters, times, and what was `reached`."""
        losses = torch.stack(self.losses).float()
        dist.all_reduce(losses)
        digests: list[Any] = [None] * self.world
        dist.all_gather_object(digests, digest(parameters))
        train_seconds = time.perf_counter() - self.start
        # After everything that is compared: these steps change the parameters.
        communication = communication_time(self.args.backend, lambda i: step(self.args.steps + i))
        result = {
            "job": self.name,
            "backend": dist.get_backend(),
            "ranks": self.world,
            "seed": self.args.seed,
            "losses": (losses / self.world).tolist(),
            "digest": digests[0],
            "ranks_agree": len(set(digests)) == 1,
            "seconds": train_seconds,
            "communication_ms_per_step": communication,
            **reached,
        }
        if self.rank == 0 and self.args.json:
            self.args.json.write_text(json.dumps(result))
        dist.barrier()
        dist.destroy_process_group()


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """SHA-256 over the bytes of all tensors in their order."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def communication_time(backend: str, step: Callable[[int], torch.Tensor]) -> float | None:
    """Milliseconds per step in which some collective of this rank was between issue and completion.

    From torch.profiler's ranges `backend:operation`, which torch opens when a Work is made and closes when it ends, for
    any backend alike; overlapping ranges count once. None if the backend reported no ranges. Waiting for other
    ranks is inside; so is what overlaps with computing.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for i in range(PROFILED_STEPS):
            step(i)
    events = [event for event in profiler.events() if event.name.startswith(f"{backend}:")]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    if not spans:
        return None
    total, reach = 0.0, spans[0][0]
    for start, end in spans:
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total / 1000 / PROFILED_STEPS


def local_shard(batch: torch.Tensor) -> torch.Tensor:
    """This rank's contiguous part of a global batch; the batch size must be divisible by the number of ranks."""
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    return batch.chunk(world)[rank]
