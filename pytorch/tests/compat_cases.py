"""Inputs on which a drop-in is held against the file it stands in for: the same in every process."""

import random

import torch

PACKAGES = ["st_moe", "mirasol", "musiclm", "spear_tts"]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
LAYOUTS = ["contiguous", "transposed", "expanded"]


def tensor(shape, dtype, layout, generator):
    if layout == "transposed":
        return tensor(shape[::-1], dtype, "contiguous", generator).permute(*reversed(range(len(shape))))
    if layout == "expanded":  # along the first dimension that is never gathered
        return tensor([1, *shape[1:]], dtype, "contiguous", generator).expand(shape)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 1000, shape, generator=generator).to(dtype)


def cases(world, seed=0):
    """[(description, dim, the tensor of each rank)]"""
    choose = random.Random(seed + world)
    generator = torch.Generator().manual_seed(seed + world)
    made = []
    for dtype in DTYPES:
        for layout in LAYOUTS:
            for dim in (0, 1, 2, -1) if layout != "expanded" else (1, -1):
                shape = [choose.randint(1, 3) for _ in range(3)]
                same = choose.random() < 0.3
                extents = [choose.randint(0, 4) for _ in range(world)]
                tensors = []
                for extent in extents:
                    shape[dim] = extents[0] if same else extent
                    tensors.append(tensor(shape, dtype, layout, generator))
                made.append((f"{dtype} {layout} dim {dim} {extents}", dim, tensors))
    return made


def differentiable(x):
    return x.dtype.is_floating_point or x.dtype.is_complex


def outcome(gather, variable, x, dim, rank):
    """What a file's gathers give: values, sizes and, where there is one, the gradient of this rank's input."""
    x = x.detach().clone(memory_format=torch.preserve_format) if x.is_contiguous() else x.detach()
    if differentiable(x):
        x.requires_grad_()
    gathered, sizes = gather(x, dim)
    result = {"gathered": gathered.detach(), "sizes": sizes, "plain": variable(x, dim)[0].detach()}
    if differentiable(x):
        weights = torch.arange(gathered.numel(), dtype=torch.float64).reshape(gathered.shape).to(x.dtype) + rank
        (gathered * weights).sum().abs().backward()
        result["grad"] = x.grad
    return result


def gathers(package, module):
    """The ways in which a file gathers with a gradient: {name: function(x, dim)}."""
    if package == "st_moe":
        return {"slice": lambda x, dim: module.AllGather(dim=dim)(x)}
    if package == "musiclm":
        return {
            "slice": lambda x, dim: module.AllGather(dim)(x),
            "all_reduce_grads": lambda x, dim: module.AllGather(dim, all_reduce_grads=True)(x),
        }
    return {"slice": lambda x, dim: module.all_gather(x, dim, None)}
