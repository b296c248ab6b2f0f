"""What is wrong with a call's arguments on this rank alone: found before anything is said, and told to every rank, so
that none waits for this one."""

import functools
import operator
import os

from . import _core, _errors
from ._site import here


class Wrong(Exception):
    """Never leaves tessera: whoever knows the ranks tells them. kind: the name of a class in _errors."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


def refuse(comm, op, wrong):
    """Collective, in place of the call of that name: every rank raises what is wrong."""
    try:
        _core.refuse(comm._core, op, wrong.kind, str(wrong), here())
    except _errors.Error as error:
        raise error from None


def _answered(answer):
    """A decorator: what is wrong with a call's arguments goes to answer(wrong, its arguments), outside of the except clause,
    so that the user is not shown what tessera makes of it inside."""

    def decorate(fn):
        @functools.wraps(fn)
        def call(*args, **named):
            try:
                return fn(*args, **named)
            except Wrong as wrong:
                problem = wrong
            answer(problem, *args, **named)

        return call

    return decorate


def told_to_all(op, comm_of):
    """For a collective: what is wrong is told to the ranks of comm_of(its arguments)."""
    return _answered(lambda wrong, *args, **named: refuse(comm_of(*args, **named), op, wrong))


def raised_here(op):
    """For what no other rank waits for."""

    def answer(wrong, *_, **__):
        file, line = here()
        raise getattr(_errors, wrong.kind)(f"{op}: {wrong}   {os.path.basename(file)}:{line}")

    return _answered(answer)


# What an argument is taken for ----------------------------------------------------------------------------------------


def called(value):
    """What it is, by its class."""
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def wrong_type(name, value, remedy):
    shown = f"{value!r:.40}, " if isinstance(value, (str, int, float)) else ""
    return Wrong("ArgumentTypeError", f"{name} is {shown}{called(value)}: give {remedy}")


def integer(name, value, bits=64):
    try:
        number = operator.index(value)
    except Exception:  # what it has by that name may fail in any way
        raise wrong_type(name, value, "an int") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise Wrong("ArgumentError", f"{name} is {number}, which is no int of {bits} bits")
    return number


def text(name, value, remedy="a str"):
    if not isinstance(value, str):
        raise wrong_type(name, value, remedy)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong("ArgumentError", f"{name} is {value!a:.40}: give {remedy}") from None
    return str.__str__(value)  # of a subclass too


def choice(name, value, known):
    remedy = ", ".join(f'"{each}"' for each in known[:-1]) + f' or "{known[-1]}"'
    word = text(name, value, remedy)
    if word not in known:
        raise Wrong("ArgumentError", f'{name} is "{word:.40}": give {remedy}')
    return word


def reduction(name, value):
    return choice(name, value, _core.reductions())


def gradient(name, value):
    return choice(name, value, ("sum", "mean", "slice"))


def integers(name, values):
    """None: []."""
    if values is None:
        return []
    remedy = "a list of integers, one for each rank"
    try:
        listed = list(values.tolist() if hasattr(values, "tolist") else values)
    except Exception:
        raise wrong_type(name, values, remedy) from None
    if not listed:  # which would mean that they are not given
        raise Wrong("ShapeError", f"{name} is empty: give {remedy}")
    return [integer(f"{name}[{i}]", value) for i, value in enumerate(listed)]
