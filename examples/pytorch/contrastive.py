"""A contrastive model (as CLIP: two encoders, pairs) on one process and on four ranks: the same losses and weights.

Each rank has another number of pairs at every step, sometimes none. A pair is scored against those of all ranks, so
every rank gathers the embeddings of all, and its gradient must come back from every rank's loss: grad="sum". With
grad="slice", which is what a copied distributed.py does, the training is another one.

    python examples/pytorch/contrastive.py
"""

import argparse
import copy

import tessera
import torch
import torch.nn.functional as F
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.text = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        return F.normalize(self.image(images), dim=-1), F.normalize(self.text(texts), dim=-1)


def model_and_optimizer(initial):
    model = copy.deepcopy(initial)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def batch(step, pairs=16):
    """Pairs that belong together: two views of the same hidden vector."""
    generator = torch.Generator().manual_seed(step)
    hidden = torch.randn(pairs, 6, generator=generator, dtype=torch.float64)
    views = torch.Generator().manual_seed(1)
    images = hidden @ torch.randn(6, 12, generator=views, dtype=torch.float64)
    texts = hidden @ torch.randn(6, 10, generator=views, dtype=torch.float64)
    return images, texts


def rows_of(step, ranks, pairs=16):
    """How many pairs each rank has at this step; one rank has none."""
    if ranks == 1:
        return [pairs]
    ends = [0, *sorted((7 * (step + 1) * (r + 1)) % (pairs + 1) for r in range(ranks - 2)), pairs]
    sizes = [b - a for a, b in zip(ends, ends[1:])]
    sizes.insert(step % ranks, 0)
    return sizes


def loss_of(model, images, texts, all_images, all_texts, first):
    """Of this rank's pairs, each against the texts, and the images, of all ranks."""
    scale = model.scale.exp()
    labels = torch.arange(first, first + images.shape[0])
    by_image = F.cross_entropy(scale * images @ all_texts.t(), labels, reduction="sum")
    by_text = F.cross_entropy(scale * texts @ all_images.t(), labels, reduction="sum")
    return (by_image + by_text) / (2 * all_images.shape[0])


def train_alone(initial, steps):
    model, optimizer = model_and_optimizer(initial)
    losses = []
    for step in range(steps):
        images, texts = model(*batch(step))
        loss = loss_of(model, images, texts, images, texts, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, nn.utils.parameters_to_vector(model.parameters()).detach()


def train_on_ranks(comm, initial, steps, grad):
    model, optimizer = model_and_optimizer(initial)
    losses = []
    for step in range(steps):
        sizes = rows_of(step, comm.size)
        images, texts = model(*(tessera.split(part, 0, sizes) for part in batch(step)))
        all_images, _ = tessera.all_gather(images, grad=grad)
        all_texts, _ = tessera.all_gather(texts, grad=grad)
        loss = loss_of(model, images, texts, all_images, all_texts, sum(sizes[: comm.rank]))
        optimizer.zero_grad()
        loss.backward()
        # The losses of the ranks add up to that of one process, and so do the gradients of the weights. DDP takes their
        # mean instead: multiply the loss by the number of ranks there.
        for weight in model.parameters():
            weight.grad = tessera.all_reduce(weight.grad)
        optimizer.step()
        losses.append(tessera.all_reduce(loss.detach()).item())
    return losses, nn.utils.parameters_to_vector(model.parameters()).detach()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--steps", type=int, default=12)
    options = arguments.parse_args()

    torch.manual_seed(0)
    initial = TwoTowers().double()  # here, once: threads share torch's random numbers
    alone, weights = train_alone(initial, options.steps)
    losses, trained = tessera.run(options.ranks, train_on_ranks, initial, options.steps, "sum")[-1]
    sliced, other = tessera.run(options.ranks, train_on_ranks, initial, options.steps, "slice")[-1]
    print(f"pairs a rank, the first steps: {[rows_of(step, options.ranks) for step in range(3)]}")
    print(f"{'step':>4} {'one process':>12} {'grad=sum':>12} {'grad=slice':>12}")
    for step in range(options.steps):
        print(f"{step:>4} {alone[step]:>12.8f} {losses[step]:>12.8f} {sliced[step]:>12.8f}")
    off = [f"{(vector - weights).abs().max():.1e}" for vector in (trained, other)]
    print(f"weights: grad=sum is off by {off[0]}, slice by {off[1]}")

    torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone))
    torch.testing.assert_close(trained, weights)
    # With two ranks one has none, and the other is as one process.
    if options.ranks > 2 and torch.allclose(other, weights, rtol=1e-3):
        raise SystemExit("slice should not have given the same weights")


if __name__ == "__main__":
    main()
