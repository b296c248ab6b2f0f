"""What tessera raises. With torch, every error is a torch.distributed.DistBackendError too, and so a DistError."""

import builtins

from . import _core

try:
    from torch.distributed import DistBackendError as _Base
except ImportError:  # without torch, or with one that is built without its distributed package
    _Base = RuntimeError


class Error(_Base):
    """The base of all. An error in a collective is the same on every rank."""


class MismatchError(Error, ValueError):
    """The ranks called different things. Nothing was moved; the communicator lives on."""


class ShapeError(Error, ValueError):
    """A dimension, a shape or a list of sizes does not fit."""


class DTypeError(Error, TypeError):
    """A dtype that the operation cannot take."""


class ArgumentError(Error, ValueError):
    """An argument that is none of those there are: a reduction, a gradient, a timeout."""


class ArgumentTypeError(Error, TypeError):
    """An argument of a type that the call does not take."""


class PeerLostError(Error):
    """A rank died, raised, or left while others needed it. Comm.shrink() makes a new communicator."""


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - the name of the C++ class
    """A rank did not come in time. Comm.shrink() makes a new communicator."""


class AbortedError(Error):
    """The communicator was aborted, or was dead already when the call was made."""


def take(name):
    """The class to raise for a C++ exception; or what a signal's handler raised (KeyboardInterrupt, as a rule), where that
    ended the call."""
    interrupt = _core.take_interrupt()
    return globals()[name] if interrupt is None else interrupt
