"""Bad input to what is derived in symbols, and to optima, transforms and anchors."""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy
import torch

from kl_companion.book.names import kl
from kl_companion.book.refusals.case import Case, bad
from kl_companion.book.refusals.samples import ALL, FISHER, HEAD, LOGITS, REF_ALL
from kl_companion.divergences import W
from kl_companion.theory.top_k_split import head_entry

_R, _Q = LOGITS[0, 0], REF_ALL[0, 0]
_X = sympy.Symbol("x")
_G = torch.ones(2)


def _own_square(logp: Any, ref_logp: Any) -> Any:
    return logp**2 - ref_logp


def _anchor(name: str, *more: torch.Tensor) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), 0.9, 0.1, 0.1)
    return (
        Case(name, "a decay of 1", partial(getattr(kl, name), 1.0, 0.1, 0.1, FISHER, *more)),
        Case(
            name, "a matrix that is not symmetric", partial(fn, torch.tensor([[1.0, 1.0], [0.0, 1.0]]), *more)
        ),
        Case(name, "a matrix [d]", partial(fn, _G, *more)),
        Case(name, "a misspelled order", partial(fn, FISHER, *more, order="newest")),
        Case(name, "no gradient steps", partial(fn, FISHER, *more, inner_steps=0)),
    )


def _threshold(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        bad("a decay of 1", fn, 1.0),
        bad("no gradient steps", fn, 0.9, steps=0),
        bad("a misspelled order", fn, 0.9, order="newest"),
    )


CASES = (
    bad("a misspelled estimator", kl.gradient_weight, "k_3"),
    bad("a misspelled placement", kl.gradient_weight, "k3", "rewards"),
    bad("a weight of more than the ratio", kl.gradient_weight, _own_square),
    bad("a misspelled estimator", kl.value, "k33"),
    bad("an exact KL", kl.value, "exact_kl"),
    bad("an exact KL", kl.trace, "exact_kl"),
    bad("a function of torch alone", kl.trace, lambda logp, ref_logp: torch.exp(ref_logp - logp)),
    bad("a number for an estimator", kl.trace, 3),
    bad("a weight in another symbol", kl.implied_f, _X),
    bad("a name for a weight", kl.implied_f, "k3"),
    bad("f in another symbol", kl.match_divergence, _X**2),
    bad("a name for f", kl.match_divergence, "reverse_kl"),
    bad("a sum of no terms", kl.match_divergence, sympy.log(W), max_terms=0),
    bad("a weight in another symbol", kl.same_weight, _X, W),
    bad("names for weights", kl.same_weight, "k3", "k4"),
    bad("a misspelled divergence", kl.split, head_entry("pearson"), kl.k3, "pearsson"),
    bad("a name for the tail", kl.split, head_entry("pearson"), "k33", "pearson"),
    bad("a misspelled divergence", kl.split_of, "neymann", "generic"),
    bad("a misspelled form", kl.split_of, "neyman", "genric"),
    bad("more than one row", kl.mass_penalty_optimum, ALL, HEAD, 1.0),
    bad("logits instead of log-probs", kl.mass_penalty_optimum, _R, HEAD, 1.0),
    bad("a divergence without an answer", kl.mass_penalty_optimum, _Q, HEAD, 1.0, "pearson"),
    bad("a token id out of the vocabulary", kl.mass_penalty_optimum, _Q, HEAD + 4, 1.0),
    bad("k beyond the vocabulary", kl.top_k_mass_optimum, _Q, 9),
    bad("logits instead of log-probs", kl.top_k_mass_optimum, _R, 2),
    bad("logits instead of log-probs", kl.optimal_policy, _R, _R),
    bad("two vocabularies", kl.optimal_policy, _R[:4], _Q),
    bad("a beta of 0", kl.optimal_policy, _R, _Q, beta=0.0),
    bad("a beta in words", kl.optimal_policy, _R, _Q, beta="small"),
    bad("rewards of integers", kl.optimal_policy, _R.long(), _Q),
    bad("a misspelled divergence", kl.optimal_policy, _R, _Q, "reverse kl"),
    bad("batches that do not go together", kl.optimal_policy, LOGITS, REF_ALL[:, :2]),
    bad("a divergence with a kink", kl.multiplier_range, _R, _Q, "total_variation"),
    bad("logits instead of log-probs", kl.multiplier_range, _R, _R, "pearson"),
    bad("a multiplier that no policy has", kl.policy_at, -100.0, _R, _Q, "forward_kl"),
    bad("a misspelled divergence", kl.policy_at, 0.0, _R, _Q, "forwards_kl"),
    bad("a divergence with a kink", kl.reward_transform, "total_variation", "reverse_kl"),
    bad("a misspelled divergence", kl.reward_transform, "reverse_kl", "person"),
    bad("a divergence with a kink", kl.transform_shape, "reverse_kl", "total_variation"),
    bad("a misspelled divergence", kl.transform_shape, "kl_reverse", "pearson"),
    bad("an optimum with zeros", kl.transformed_rewards, 20 * _R, _Q, "pearson", "reverse_kl", 0.1),
    bad("logits instead of log-probs", kl.transformed_rewards, _R, _R, "pearson", "neyman"),
    *_threshold("stability_threshold"),
    *_threshold("oscillation_threshold"),
    bad("a negative eigenvalue", kl.lag_factor, -0.1, 0.9),
    bad("a decay of 1", kl.lag_factor, 0.1, 1.0),
    bad("a decay in words", kl.lag_factor, 0.1, "0.9"),
    bad("a step size of 0", kl.regime, 0.9, 0.0, 0.1, 1.0),
    bad("a negative beta", kl.regime, 0.9, 0.1, -0.1, 1.0),
    bad("a negative eigenvalue", kl.regime, 0.9, 0.1, 0.1, -1.0),
    bad("a period of 0", kl.regime, 0.9, 0.1, 0.1, 1.0, period=0),
    *_anchor("lag_matrix"),
    *_anchor("steady_lag", _G),
    *_anchor("steady_kl", _G),
    bad("a gradient of another shape", kl.steady_lag, 0.9, 0.1, 0.1, FISHER, torch.ones(3)),
    bad("a lag that does not settle", kl.steady_lag, 0.9, 10.0, 10.0, FISHER, _G),
    bad("a misspelled moment", kl.steady_kl, 0.9, 0.1, 0.1, FISHER, _G, moment="later"),
)
