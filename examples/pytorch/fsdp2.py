"""FSDP2 training of a small transformer over tessera's shared memory.

    torchrun --standalone --nproc-per-node 2 examples/pytorch/fsdp2.py [tessera|gloo]

Prints the loss of every step, averaged over the ranks: the same with both backends.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    """Predicts the next of 61 tokens: an odd number, so that shards differ in size."""

    tokens = 61

    def __init__(self, width=48, layers=2, heads=4, length=16):
        super().__init__()
        self.embedding = nn.Embedding(self.tokens, width)
        self.position = nn.Parameter(torch.randn(length, width) / 8)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, self.tokens)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(steps=10):
    """The losses, averaged over the ranks. Needs a process group; collective."""
    torch.manual_seed(0)
    model = Transformer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        start = torch.randint(0, model.tokens, (8, 1), generator=generator)
        text = (start + 7 * torch.arange(17)) % model.tokens  # each token follows from the one before
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


if __name__ == "__main__":
    import tessera  # noqa: F401  registers the backend

    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "tessera")
    for step, loss in enumerate(train()):
        if dist.get_rank() == 0:
            print(f"step {step}: {loss:.5f}")
    dist.destroy_process_group()
