"""FSDP2 with bfloat16 mixed precision: a small character transformer reads Python's own reference manual.

The text is the one behind `help("topics")`, in the standard library of every Python, about 0.7 MB.

    torchrun --nproc-per-node 2 scripts/demo_jobs/fsdp_chars.py --backend ringcomm
"""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from common import Job, arguments, local_shard

CONTEXT, WIDTH, HEADS, LAYERS = 64, 128, 4, 2
BATCH = 16  # of all ranks together


class Block(nn.Module):
    """Pre-norm attention and feed-forward, [N, CONTEXT, WIDTH] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, WIDTH))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class CharModel(nn.Module):
    """Character numbers [N, CONTEXT] -> logits [N, CONTEXT, characters] of the next one."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, chars: torch.Tensor) -> torch.Tensor:
        x = self.embed(chars) + self.place(torch.arange(chars.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def data() -> tuple[torch.Tensor, torch.Tensor, int]:
    """The text as numbers, its last twentieth held out: training, held out, number of characters."""
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {char: number for number, char in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[char] for char in text])
    cut = len(numbers) * 19 // 20
    return numbers[:cut], numbers[cut:], len(alphabet)


def shard(model: CharModel) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)  # gradients are reduced in bfloat16 too
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def loss_at(model: nn.Module, text: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    window = text[places.unsqueeze(1) + torch.arange(CONTEXT + 1)]
    logits = model(window[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), window[:, 1:].flatten())


def main() -> None:
    args = arguments(__doc__, steps=150)
    job = Job("fsdp_chars", args)
    text, held_out, characters = data()
    model = CharModel(characters)
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    order = torch.Generator().manual_seed(args.seed)

    def step(_: int) -> torch.Tensor:
        places = local_shard(torch.randint(len(text) - CONTEXT, (BATCH,), generator=order))
        optimizer.zero_grad()
        loss = loss_at(model, text, places)
        loss.backward()
        optimizer.step()
        return loss

    job.train(step)
    with torch.no_grad():
        # The same places on every rank: the forward pass gathers the shards, so all ranks must take part.
        places = torch.arange(0, len(held_out) - CONTEXT, max(1, len(held_out) // 64))
        final = loss_at(model, held_out, places).item()
    assert isinstance(model, FSDPModule)  # fully_shard changed its class
    model.reshard()  # a forward pass without a backward leaves the root's parameters gathered
    whole = [p.full_tensor() for p in model.parameters() if isinstance(p, DTensor)]
    job.finish(whole, step, held_out_loss=final)


if __name__ == "__main__":
    main()
