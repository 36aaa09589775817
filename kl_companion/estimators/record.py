"""The record of an estimator, the dict that holds them, and a decorator that returns the function untouched.

What is stored is what an estimator is *named for* (``target``: the divergence whose value it
estimates). What its gradient does is never stored; it is computed. Modules with formulas import this one;
whoever looks something up imports `registry`, which has loaded all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from kl_companion.checks import check_choice
from kl_companion.divergences import get_divergence

Inputs = Literal["sampled", "vocab", "top_k"]
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


def register_estimator(
    name: str, *, target: str, source: str, inputs: Inputs = "sampled"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the estimator ``name`` and return it untouched.

    Args:
        name: Name in the registry, used by tables, the audit and the command line.
        target: Name of the divergence whose value it estimates.
        source: Bib key and place.
        inputs: ``"sampled"`` (log-probs of sampled tokens), ``"vocab"`` (whole distributions) or
            ``"top_k"`` (both).

    Raises:
        ValueError: the name is taken by another function, the target is no registered divergence, or
            ``inputs`` is none of the three.
    """
    get_divergence(target)
    check_choice("inputs", inputs, INPUTS)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        taken = ESTIMATORS.get(name)
        if taken is not None and (taken.fn.__module__, taken.fn.__qualname__) != (
            fn.__module__,
            fn.__qualname__,
        ):
            raise ValueError(
                f"estimator {name!r} is registered already, by {taken.fn.__module__}: expected a new name"
            )
        ESTIMATORS[name] = Estimator(name, fn, target, inputs, source)
        return fn

    return decorate
