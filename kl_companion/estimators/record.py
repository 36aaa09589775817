"""The record of an estimator, the dict that holds them, and a decorator that returns the function untouched.

What is stored is what an estimator is *named for* (``target``: the divergence whose value it
estimates). What its gradient does is never stored; it is computed. Modules with formulas import this one;
whoever looks something up imports `registry`, which has loaded all of them.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeVar

from kl_companion.checks import check_choice
from kl_companion.divergences import get_divergence

Inputs = Literal["sampled", "vocab", "top_k"]
F = TypeVar("F", bound=Callable[..., Any])
INPUTS: tuple[Inputs, ...] = ("sampled", "vocab", "top_k")


class Estimator(NamedTuple):
    """An estimator of a divergence between policy and reference.

    Attributes:
        name: The registered name.
        fn: ``fn(logp, ref_logp)`` on sampled log-probs [batch, seq]; for ``inputs="vocab"``,
            ``fn(logp_all, ref_logp_all)`` on whole distributions [batch, seq, vocab]; for
            ``inputs="top_k"``, ``fn(logp_all, ref_logp_all, tokens)`` (see `TopK`).
        target: The divergence whose value it estimates (a name in ``DIVERGENCES``).
        inputs: What ``fn`` reads.
        source: Bib key and place.
    """

    name: str
    fn: Callable[..., Any]
    target: str
    inputs: Inputs
    source: str


ESTIMATORS: dict[str, Estimator] = {}
ESTIMATOR_FAMILIES: dict[str, Callable[[str], Estimator]] = {}


def _registered(name: str) -> Estimator:
    return ESTIMATORS[name]


def _reduced(entry: Estimator) -> tuple[Any, ...]:
    """Pickle a registered estimator by its name, as functions are: its formula may be a closure."""
    if ESTIMATORS.get(entry.name) is entry:
        return _registered, (entry.name,)
    return Estimator, tuple(entry)


copyreg.pickle(Estimator, _reduced)


def register_estimator(
    name: str, *, target: str, source: str, inputs: Inputs = "sampled", overwrite: bool = False
) -> Callable[[F], F]:
    """Register a function as the estimator ``name`` and return it untouched.

    Args:
        name: Name in the registry, used by tables, the audit and the command line.
        target: Name of the divergence whose value it estimates.
        source: Bib key and place.
        inputs: ``"sampled"`` (log-probs of sampled tokens), ``"vocab"`` (whole distributions) or
            ``"top_k"`` (both).
        overwrite: Whether the function replaces another one of that name.

    Raises:
        ValueError: the name is taken by another function, the target is no registered divergence, or
            ``inputs`` is none of the three. A function that is defined again, as by a cell of a notebook
            that is run again, may replace itself; so may a lambda, a closure or a `functools.partial` whose
            code and values are the same.
    """
    get_divergence(target)
    check_choice("inputs", inputs, INPUTS)

    def decorate(fn: F) -> F:
        taken = ESTIMATORS.get(name)
        if taken is not None and not overwrite and not same_function(taken.fn, fn):
            module = getattr(taken.fn, "__module__", type(taken.fn).__module__)
            raise ValueError(
                f"estimator {name!r} is registered already, by {module}: expected a new name, or "
                "overwrite=True"
            )
        ESTIMATORS[name] = Estimator(name, fn, target, inputs, source)
        return fn

    return decorate


def same_function(a: Any, b: Any) -> bool:
    """Return whether two functions are one, or one that was defined a second time."""
    if isinstance(a, partial) and isinstance(b, partial):
        return all(map(_same_value, (a.func, a.args, a.keywords), (b.func, b.args, b.keywords)))
    if not (isinstance(a, FunctionType) and isinstance(b, FunctionType)):
        return bool(type(a) is type(b) and a == b)
    if (a.__module__, a.__qualname__) != (b.__module__, b.__qualname__):
        return False
    if "<" not in a.__qualname__ and not hasattr(a, "__wrapped__"):
        return True  # neither a lambda, nor in a function, nor made by a decorator: the name is its own
    values = ((f.__defaults__, f.__kwdefaults__, _enclosed(f)) for f in (a, b))
    return a.__code__ == b.__code__ and _same_value(*values)


def _enclosed(f: FunctionType) -> list[Any]:
    """Return the values that a closure holds; of a recursive one without itself, which has no end."""
    cells = [c.cell_contents for c in f.__closure__ or ()]
    return [None if x is f else x for x in cells]


def _same_value(a: Any, b: Any) -> bool:
    """Return whether two values in a function are one; tensors and arrays are so only if identical."""
    if a is b:
        return True
    if isinstance(a, (FunctionType, partial)) and type(a) is type(b):
        return same_function(a, b)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same_value, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_value(a[key], b[key]) for key in a)
    if hasattr(a, "__array__") or type(a) is not type(b):
        return False
    return bool(a == b)
