"""DDP on real images: scikit-learn's 1797 handwritten digits (8 x 8, UCI), a small convolutional network, float32.

torchrun --nproc-per-node 2 scripts/demo_jobs/ddp_digits.py --backend ringcomm
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import Job, arguments, local_shard

BATCH = 64  # of all ranks together, so that every number of ranks sees the same batches


def model() -> nn.Module:
    """Images [N, 1, 8, 8] -> logits [N, 10]; 2.2 MB of parameters, so DDP makes more than one bucket."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def data(seed: int) -> list[torch.Tensor]:
    """Training images, test images, training labels, test labels; a fifth is for the test, classes in proportion."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=seed, stratify=digits.target)
    return [images[train], images[test], labels[train], labels[test]]


def main() -> None:
    args = arguments(__doc__, steps=220)
    job = Job("ddp_digits", args)
    train_x, test_x, train_y, test_y = data(args.seed)
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(args.seed)

    def step(_: int) -> torch.Tensor:
        batch = local_shard(torch.randperm(len(train_y), generator=order)[:BATCH])
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
        return loss

    job.train(step)
    with torch.no_grad():
        accuracy = (ddp.module(test_x).argmax(1) == test_y).float().mean().item()
    job.finish(ddp.module.parameters(), step, accuracy=accuracy)


if __name__ == "__main__":
    main()
