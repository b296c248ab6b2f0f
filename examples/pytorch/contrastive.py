"""A contrastive model (as CLIP: two encoders, pairs) on one process and on four under DDP: the same losses and weights.

Each rank has another number of pairs at every step, sometimes none. A pair is scored against those of all ranks, so
every rank gathers the embeddings of all, and their gradient must come back from every rank's loss: grad="sum". DDP
takes the mean of the ranks' gradients; a rank's loss is weighted by its rows, so that this mean is the gradient of
one process.

With the AllGather of a copied distributed.py in its place, whose gradient is only that of the own loss, the training is
another one. It is taken from the package st-moe-pytorch where that is installed, else from tessera.compat.

    python examples/pytorch/contrastive.py [--ranks 4] [--steps 12] [--backend tessera]
"""

import argparse
import importlib.util
import os
import tempfile
import warnings

import tessera
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PAIRS = 16  # of all ranks, at every step


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.text = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        return F.normalize(self.image(images), dim=-1), F.normalize(self.text(texts), dim=-1), self.scale.exp()


def new_model():
    torch.manual_seed(0)
    model = TwoTowers().double()
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def batch(step):
    """Pairs that belong together: two views of the same hidden vector."""
    generator = torch.Generator().manual_seed(step)
    hidden = torch.randn(PAIRS, 6, generator=generator, dtype=torch.float64)
    views = torch.Generator().manual_seed(1)
    images = hidden @ torch.randn(6, 12, generator=views, dtype=torch.float64)
    texts = hidden @ torch.randn(6, 10, generator=views, dtype=torch.float64)
    return images, texts


def rows_of(step, ranks):
    """How many pairs each rank has at this step; one rank has none."""
    ends = [0, *sorted((7 * (step + 1) * (r + 1)) % (PAIRS + 1) for r in range(ranks - 2)), PAIRS]
    sizes = [b - a for a, b in zip(ends, ends[1:])]
    sizes.insert(step % ranks, 0)
    return sizes


def loss_of(images, texts, scale, all_images, all_texts, first):
    """The sum over this rank's pairs, each scored against the texts, and the images, of all ranks."""
    labels = torch.arange(first, first + images.shape[0])
    by_image = F.cross_entropy(scale * images @ all_texts.t(), labels, reduction="sum")
    by_text = F.cross_entropy(scale * texts @ all_images.t(), labels, reduction="sum")
    return (by_image + by_text) / 2


def weights_of(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def train_alone(steps):
    model, optimizer = new_model()
    losses, weights = [], []
    for step in range(steps):
        images, texts, scale = model(*batch(step))
        loss = loss_of(images, texts, scale, images, texts, 0) / PAIRS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        weights.append(weights_of(model))
    return torch.tensor(losses, dtype=torch.float64), torch.stack(weights)


def train_under_ddp(steps, gather):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, optimizer = new_model()
    parallel = DistributedDataParallel(model)
    losses, weights = [], []
    for step in range(steps):
        sizes = rows_of(step, ranks)
        first = sum(sizes[:rank])
        images, texts, scale = parallel(*(part[first : first + sizes[rank]] for part in batch(step)))
        all_images, _ = gather(images)
        all_texts, _ = gather(texts)
        loss = loss_of(images, texts, scale, all_images, all_texts, first) * ranks / all_images.shape[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(tessera.all_reduce(loss.detach(), "avg").item())
        weights.append(weights_of(model))
    return torch.tensor(losses, dtype=torch.float64), torch.stack(weights)


def copied_all_gather():
    """The AllGather of a distributed.py that is copied from project to project."""
    package = importlib.util.find_spec("st_moe_pytorch")
    if package is None:
        from tessera.compat import st_moe

        warnings.filterwarnings("ignore", message="the gradient of this gather")  # that is what is shown here
        return st_moe.AllGather()
    path = os.path.join(os.path.dirname(package.origin), "distributed.py")  # alone: its package needs much else
    spec = importlib.util.spec_from_file_location("copied_distributed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AllGather()


def be_rank(rank, options, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", options.ranks)
    dist.init_process_group(options.backend, store=store, rank=rank, world_size=options.ranks)
    results = [train_under_ddp(options.steps, gather) for gather in (tessera.all_gather, copied_all_gather())]
    torch.save(results, f"{folder}/{rank}")
    dist.destroy_process_group()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--steps", type=int, default=12)
    arguments.add_argument("--backend", default="tessera", help="of torch.distributed; gloo works too")
    options = arguments.parse_args()

    alone, weights = train_alone(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(be_rank, (options, folder), options.ranks)
        by_rank = [torch.load(f"{folder}/{rank}") for rank in range(options.ranks)]
    (losses, trained), (copied, other) = by_rank[0]
    print(f"pairs a rank, the first steps: {[rows_of(step, options.ranks) for step in range(3)]}")
    print(f"{'step':>4} {'one process':>12} {'tessera':>12} {'copied':>12}   weights: tessera is off by, the copy by")
    for step in range(options.steps):
        off = [(those[step] - weights[step]).abs().max() for those in (trained, other)]
        print(
            f"{step:>4} {alone[step]:>12.8f} {losses[step]:>12.8f} {copied[step]:>12.8f}   {off[0]:.1e}  {off[1]:.1e}"
        )

    for results in by_rank:
        torch.testing.assert_close(results[0][0], alone)
        torch.testing.assert_close(results[0][1], weights)
    # With two ranks one has none, and the other is as one process.
    if options.ranks > 2 and torch.allclose(other[-1], weights[-1], rtol=1e-3):
        raise SystemExit("the copied AllGather should not have given the same weights")


if __name__ == "__main__":
    main()
