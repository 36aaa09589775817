"""This package's sampled estimators as values of verl's options `kl_loss_type` and `algorithm.kl_penalty`.

    export VERL_USE_EXTERNAL_MODULES=kl_companion.frameworks.verl_register
    python -m verl.trainer.main_ppo actor_rollout_ref.actor.kl_loss_type=k3_plus_plus ...

verl imports the modules that this variable names in the driver and in every Ray worker (a worker also takes
`actor_rollout_ref.model.external_lib`), and importing this one registers: verl's `kl_penalty` looks up the
function that tells its options apart in its own module, and finds `dispatcher`'s there. Where verl is not
installed the import does nothing, and `register` says what is missing.

verl's own names keep verl's own functions, clamps included. All other names are those of `kl-companion list`,
and ``kl_companion:k3`` is this package's K3 where both have one. Names with parentheses want quotes in verl's
command line: ``"kl_loss_type='kf_plus_plus(pearson)'"``. A ``+`` at the end does what it does in verl: the
value of the estimator with the gradient of K2.

verl hands over the log-probs of the sampled tokens and nothing else. So estimators of whole distributions are
refused, and there is no ratio to the policy that sampled: the gradient is the one that `kl_companion.audit`
finds on-policy in the first update on a batch only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from kl_companion.checks import unknown_name
from kl_companion.estimators.registry import (
    ESTIMATOR_FAMILIES,
    ESTIMATORS,
    Estimator,
    get_estimator,
    sampled_estimator,
)

KNOWN = "0.9.1"
OWN = "kl_companion:"
# the names that verl 0.9.1 answers to; "full" is there and not implemented
VERL_NAMES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full")
Forward = Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]


def estimator_of(option: str) -> Estimator:
    """The estimator that an option's value names, with or without ``kl_companion:`` before it.

    Raises:
        ValueError: an unknown name (the known ones and the nearest are listed), or an estimator that reads
            next-token distributions.
    """
    name = option.removeprefix(OWN)
    try:
        entry = get_estimator(name)
    except ValueError:
        if name in ESTIMATORS or name.partition("(")[0] in ESTIMATOR_FAMILIES:
            raise  # the family is known: what is wrong is in the parentheses
        families = (f"{family}(...)" for family in ESTIMATOR_FAMILIES)
        raise unknown_name("kl_loss_type", option, [*VERL_NAMES, *ESTIMATORS, *families]) from None
    return sampled_estimator(
        entry, f"kl_loss_type={option!r}", "verl hands over the log-probs of sampled tokens only"
    )


def dispatcher(stock: Forward) -> Forward:
    """verl's `kl_penalty_forward` with more names: its own go to ``stock``, all others to this package."""

    def kl_penalty_forward(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
        if kl_penalty in VERL_NAMES:
            return stock(logprob, ref_logprob, kl_penalty)
        return estimator_of(kl_penalty).fn(logprob, ref_logprob)

    kl_penalty_forward.stock = stock  # type: ignore[attr-defined]
    return kl_penalty_forward


def register(core_algos: Any = None) -> None:
    """Let verl's `kl_penalty` find this package's estimators; a second call changes nothing.

    Args:
        core_algos: The module `verl.trainer.ppo.core_algos`; None imports it.

    Raises:
        ImportError: verl, or something it needs, is not installed, or it is a version without this function.
    """
    module = _core_algos() if core_algos is None else core_algos
    stock = getattr(module, "kl_penalty_forward", None)
    if stock is None:
        raise ImportError(
            f"{module.__name__} has no kl_penalty_forward, through which estimators are registered: "
            f"pip install 'verl=={KNOWN}' (the version known to work)"
        )
    if not hasattr(stock, "stock"):
        module.kl_penalty_forward = dispatcher(stock)


def _core_algos() -> Any:
    try:
        return import_module("verl.trainer.ppo.core_algos")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"registering estimators in verl needs {error.name}, which is not installed: "
            f"pip install 'verl=={KNOWN}' (the version known to work)",
            name=error.name,
        ) from error


if "verl" in sys.modules:
    register()  # verl is importing this module, or was there before: what goes wrong is for the user to see
elif find_spec("verl") is not None:
    with suppress(ImportError):  # verl cannot be imported, so nothing runs that would miss the estimators
        register()
