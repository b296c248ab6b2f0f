"""Loads the operators, if this is the torch that they were built for: C++ classes differ between versions."""

import contextlib
import os

import torch
import typing_extensions

from . import _site
from ._version import built_for_torch

_remedy = "rebuild tessera in this environment: pip install --no-build-isolation --force-reinstall --no-deps ."


def release(version):
    """2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


if not built_for_torch:
    raise ImportError(f"tessera was built without torch, and torch {torch.__version__} is here: {_remedy}")
if release(torch.__version__) != release(built_for_torch):
    raise ImportError(f"tessera was built for torch {built_for_torch}, this is {torch.__version__}: {_remedy}")

from . import _backend, _order, _torch  # noqa: E402 - only now

_order.keep_calls()

# The two files have what torch wraps its functions in, and the name is that of code which torch.fx writes.
_site.library_paths += (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    contextlib.__file__,
    typing_extensions.__file__,
    "<eval_with_key>",
)
_torch.set_library_paths(_site.library_paths)
_backend.set_library_paths(_site.library_paths)
