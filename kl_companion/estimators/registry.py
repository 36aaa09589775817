"""The registry of estimators: importing this module has loaded every formula that registers one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kl_companion.checks import described, look_up
from kl_companion.divergences import DIVERGENCES
from kl_companion.estimators import sampled, top_k, vocabulary
from kl_companion.estimators.record import ESTIMATOR_FAMILIES, ESTIMATORS, Estimator, register_estimator

__all__ = [
    "ESTIMATORS",
    "ESTIMATOR_FAMILIES",
    "Estimator",
    "as_estimator",
    "get_estimator",
    "register_estimator",
    "sampled_estimator",
]


def get_estimator(name: str | Estimator) -> Estimator:
    """The estimator of that name; families take an argument: ``"kf_plus_plus(pearson)"``.

    Raises:
        ValueError: unknown name (the known ones and the nearest are listed).
    """
    if isinstance(name, Estimator):
        return name
    return look_up("estimator", name, ESTIMATORS, ESTIMATOR_FAMILIES)


def as_estimator(estimator: str | Estimator | Callable[..., Any]) -> Estimator:
    """The entry of a name, or one made for a function of ``(logp, ref_logp)``, which is named for nothing.

    Raises:
        ValueError: an unknown name, or neither a name nor a function.
    """
    if isinstance(estimator, (str, Estimator)):
        return get_estimator(estimator)
    if not callable(estimator):
        raise ValueError(f"estimator is {described(estimator)}, expected a name or a function")
    return Estimator(getattr(estimator, "__name__", "the function"), estimator, "", "sampled", "")


def sampled_estimator(
    estimator: str | Estimator | Callable[..., Any], got_by: str = "", why: str = ""
) -> Estimator:
    """`as_estimator` where only log-probs of samples are known.

    Args:
        estimator: A name, an entry or a function.
        got_by: What got it, for the message.
        why: Why nothing else will do, for the message.

    Raises:
        ValueError: as `as_estimator`, or an estimator that reads next-token distributions.
    """
    entry = as_estimator(estimator)
    if entry.inputs != "sampled":
        raise ValueError(
            f"{got_by} got {entry.name!r}, which reads next-token distributions, expected a sampled "
            f"estimator{why and f': {why}'}".lstrip()
        )
    return entry


# tables list estimators in this order, whichever of the modules was imported first
for _module in (sampled, vocabulary, top_k):
    for _name in [n for n, e in ESTIMATORS.items() if e.fn.__module__ == _module.__name__]:
        ESTIMATORS[_name] = ESTIMATORS.pop(_name)
for _name in (
    "k_lambda(0.5)",
    *(f"kf_plus_plus({d})" for d in DIVERGENCES),
    "top_k_reverse_kl(32)",
    "top_k_forward_kl(32)",
):
    ESTIMATORS[_name] = get_estimator(_name)
