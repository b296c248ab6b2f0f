"""What the drop-ins stand in for, and what it gives on the ranks of a Gloo group."""

import importlib.metadata
import importlib.util

import compat_cases
import torch
import torch.nn.functional as F


def load(package, supply=True):
    """The file alone, by its path: its package needs much that is not here. The names that it forgot are supplied."""
    files = importlib.metadata.files(f"{package.replace('_', '-')}-pytorch")
    path = next(file.locate() for file in files if file.name == "distributed.py")
    spec = importlib.util.spec_from_file_location(f"seed_{package}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def pad_dim_to(t, length, dim=0):
        behind = t.ndim - 1 - dim % t.ndim
        return F.pad(t, [0, 0] * behind + [0, length - t.shape[dim]])

    for name, value in {"exists": lambda value: value is not None, "F": F, "pad_dim_to": pad_dim_to}.items():
        if supply and not hasattr(module, name):
            setattr(module, name, value)
    return module


def save_outcomes(rank, world, out):
    results = {}
    for package in compat_cases.PACKAGES:
        module = load(package)
        for name, gather in compat_cases.gathers(package, module).items():
            for description, dim, tensors in compat_cases.cases(world):
                try:
                    result = compat_cases.outcome(gather, module.all_gather_variable_dim, tensors[rank], dim, rank)
                except (AssertionError, RuntimeError, ValueError) as error:
                    result = str(error)
                results[package, name, description] = result
    torch.save(results, f"{out}.{rank}")
