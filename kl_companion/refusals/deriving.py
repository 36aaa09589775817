"""Bad input to what is derived in symbols, and to optima, transforms and anchors."""

from __future__ import annotations

from functools import partial
from typing import Any

import sympy
import torch

import kl_companion as kl
from kl_companion.divergences import W
from kl_companion.refusals.case import Case
from kl_companion.refusals.samples import ALL, FISHER, HEAD, LOGITS, REF_ALL
from kl_companion.theory.masked import head_entry

_ANY: Any = kl  # arguments of wrong types are what is tried here
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
        Case(name, "a decay of 1", partial(fn, 1.0)),
        Case(name, "no gradient steps", partial(fn, 0.9, steps=0)),
        Case(name, "a misspelled order", partial(fn, 0.9, order="newest")),
    )


CASES = (
    Case("gradient_weight", "a misspelled estimator", lambda: kl.gradient_weight("k_3")),
    Case("gradient_weight", "a misspelled placement", lambda: _ANY.gradient_weight("k3", "rewards")),
    Case("gradient_weight", "a weight of more than the ratio", lambda: kl.gradient_weight(_own_square)),
    Case("value", "a misspelled estimator", lambda: kl.value("k33")),
    Case("value", "an exact KL", lambda: kl.value("exact_kl")),
    Case("trace", "an exact KL", lambda: kl.trace("exact_kl")),
    Case(
        "trace",
        "a function of torch alone",
        lambda: kl.trace(lambda logp, ref_logp: torch.exp(ref_logp - logp)),
    ),
    Case("trace", "a number for an estimator", lambda: _ANY.trace(3)),
    Case("implied_f", "a weight in another symbol", lambda: kl.implied_f(_X)),
    Case("implied_f", "a name for a weight", lambda: _ANY.implied_f("k3")),
    Case("match_divergence", "f in another symbol", lambda: kl.match_divergence(_X**2)),
    Case("match_divergence", "a name for f", lambda: _ANY.match_divergence("reverse_kl")),
    Case("match_divergence", "a sum of no terms", lambda: kl.match_divergence(sympy.log(W), max_terms=0)),
    Case("same_weight", "a weight in another symbol", lambda: kl.same_weight(_X, W)),
    Case("same_weight", "names for weights", lambda: _ANY.same_weight("k3", "k4")),
    Case("split", "a misspelled divergence", lambda: kl.split(head_entry("pearson"), kl.k3, "pearsson")),
    Case("split", "a name for the tail", lambda: _ANY.split(head_entry("pearson"), "k33", "pearson")),
    Case("split_of", "a misspelled divergence", lambda: kl.split_of("neymann", "generic")),
    Case("split_of", "a misspelled form", lambda: _ANY.split_of("neyman", "genric")),
    Case("mass_penalty_optimum", "more than one row", lambda: kl.mass_penalty_optimum(ALL, HEAD, 1.0)),
    Case(
        "mass_penalty_optimum", "logits instead of log-probs", lambda: kl.mass_penalty_optimum(_R, HEAD, 1.0)
    ),
    Case(
        "mass_penalty_optimum",
        "a divergence without an answer",
        lambda: kl.mass_penalty_optimum(_Q, HEAD, 1.0, "pearson"),
    ),
    Case(
        "mass_penalty_optimum",
        "a token id out of the vocabulary",
        lambda: kl.mass_penalty_optimum(_Q, HEAD + 4, 1.0),
    ),
    Case("top_k_mass_optimum", "k beyond the vocabulary", lambda: kl.top_k_mass_optimum(_Q, 9)),
    Case("top_k_mass_optimum", "logits instead of log-probs", lambda: kl.top_k_mass_optimum(_R, 2)),
    Case("optimal_policy", "logits instead of log-probs", lambda: kl.optimal_policy(_R, _R)),
    Case("optimal_policy", "two vocabularies", lambda: kl.optimal_policy(_R[:4], _Q)),
    Case("optimal_policy", "a beta of 0", lambda: kl.optimal_policy(_R, _Q, beta=0.0)),
    Case("optimal_policy", "a beta in words", lambda: _ANY.optimal_policy(_R, _Q, beta="small")),
    Case("optimal_policy", "rewards of integers", lambda: kl.optimal_policy(_R.long(), _Q)),
    Case("optimal_policy", "a misspelled divergence", lambda: kl.optimal_policy(_R, _Q, "reverse kl")),
    Case(
        "optimal_policy", "batches that do not go together", lambda: kl.optimal_policy(LOGITS, REF_ALL[:, :2])
    ),
    Case(
        "multiplier_range", "a divergence with a kink", lambda: kl.multiplier_range(_R, _Q, "total_variation")
    ),
    Case("multiplier_range", "logits instead of log-probs", lambda: kl.multiplier_range(_R, _R, "pearson")),
    Case("policy_at", "a multiplier that no policy has", lambda: kl.policy_at(-100.0, _R, _Q, "forward_kl")),
    Case("policy_at", "a misspelled divergence", lambda: kl.policy_at(0.0, _R, _Q, "forwards_kl")),
    Case(
        "reward_transform",
        "a divergence with a kink",
        lambda: kl.reward_transform("total_variation", "reverse_kl"),
    ),
    Case("reward_transform", "a misspelled divergence", lambda: kl.reward_transform("reverse_kl", "person")),
    Case(
        "transform_shape",
        "a divergence with a kink",
        lambda: kl.transform_shape("reverse_kl", "total_variation"),
    ),
    Case("transform_shape", "a misspelled divergence", lambda: kl.transform_shape("kl_reverse", "pearson")),
    Case(
        "transformed_rewards",
        "an optimum with zeros",
        lambda: kl.transformed_rewards(20 * _R, _Q, "pearson", "reverse_kl", 0.1),
    ),
    Case(
        "transformed_rewards",
        "logits instead of log-probs",
        lambda: kl.transformed_rewards(_R, _R, "pearson", "neyman"),
    ),
    *_threshold("stability_threshold"),
    *_threshold("oscillation_threshold"),
    Case("lag_factor", "a negative eigenvalue", lambda: kl.lag_factor(-0.1, 0.9)),
    Case("lag_factor", "a decay of 1", lambda: kl.lag_factor(0.1, 1.0)),
    Case("lag_factor", "a decay in words", lambda: _ANY.lag_factor(0.1, "0.9")),
    Case("regime", "a step size of 0", lambda: kl.regime(0.9, 0.0, 0.1, 1.0)),
    Case("regime", "a negative beta", lambda: kl.regime(0.9, 0.1, -0.1, 1.0)),
    Case("regime", "a negative eigenvalue", lambda: kl.regime(0.9, 0.1, 0.1, -1.0)),
    Case("regime", "a period of 0", lambda: kl.regime(0.9, 0.1, 0.1, 1.0, period=0)),
    *_anchor("lag_matrix"),
    *_anchor("steady_lag", _G),
    *_anchor("steady_kl", _G),
    Case(
        "steady_lag",
        "a gradient of another shape",
        lambda: kl.steady_lag(0.9, 0.1, 0.1, FISHER, torch.ones(3)),
    ),
    Case("steady_lag", "a lag that does not settle", lambda: kl.steady_lag(0.9, 10.0, 10.0, FISHER, _G)),
    Case(
        "steady_kl", "a misspelled moment", lambda: _ANY.steady_kl(0.9, 0.1, 0.1, FISHER, _G, moment="later")
    ),
)
