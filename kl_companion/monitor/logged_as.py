"""The estimator, sign, average and pair that a trainer's number equals on the tokens that were read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import torch

from kl_companion.estimators.registry import get_estimator

LEAST = 1e-4  # nats: below, K1, K2 and K3 are the same to all digits that a trainer keeps
EXCHANGED = "reference/policy"
RELATIVE, ABSOLUTE = 1e-5, 5e-7  # float32 and the order of summation
Pair = tuple[torch.Tensor, torch.Tensor]


def logged_as(
    logged: float | None, pairs: Mapping[str, Pair], answer: torch.Tensor, beta: float | None = None
) -> tuple[str, ...] | None:
    """Return the names of all numbers of these tokens that equal the logged one.

    Args:
        logged: The trainer's number.
        pairs: Log-probs of the sampled tokens under two distributions, [tokens] each, by their name such as
            "policy/reference"; pairs with a NaN are left out.
        answer: [tokens], 0 to answers - 1.
        beta: The KL coefficient, by which the number may be multiplied.

    Returns:
        Names such as "-K1 policy/reference tokens" and "K3 old/reference sum beta": the estimator with its
        sign, the pair, the average (over tokens, over answers of each answer's mean, or the sum over an
        answer), and the factor. None where the number is unknown, or so small that estimators agree.
    """
    if logged is None or not math.isfinite(logged) or abs(logged) < LEAST:
        return None
    slack = RELATIVE * abs(logged) + ABSOLUTE
    return tuple(name for name, x in _numbers(pairs, answer, beta) if abs(x - logged) <= slack)


def _numbers(
    pairs: Mapping[str, Pair], answer: torch.Tensor, beta: float | None
) -> Iterator[tuple[str, float]]:
    """Yield every number with its name, those without a turned sign and without a factor first."""
    plain = []
    lengths = torch.bincount(answer).double()
    for pair, (logp, ref_logp) in pairs.items():
        if logp.isnan().any() or ref_logp.isnan().any():
            continue
        # exchanged, K1 is minus K1 and K2 is K2
        for name in ("k3",) if pair == EXCHANGED else ("k1", "k3", "k2"):
            values = get_estimator(name).fn(logp, ref_logp)
            sums = torch.zeros_like(lengths).index_add_(0, answer, values)
            averages = {"tokens": values.mean(), "answers": (sums / lengths).mean(), "sum": sums.mean()}
            plain += [(f"{name.upper()} {pair} {average}", x.item()) for average, x in averages.items()]
    factors = [("", 1.0), (" beta", beta)] if beta else [("", 1.0)]
    for (factor, times), sign in itertools.product(factors, ("", "-")):
        for name, x in plain:
            yield f"{sign}{name}{factor}", (times or 1.0) * (-x if sign else x)
