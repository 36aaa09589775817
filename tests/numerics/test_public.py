"""Every public function at and beyond the edges of what it takes: an answer or a ValueError, never NaN.

Whether an answer is right is asked by the function's own tests, and of estimators and divergences in the two
files beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_book.names import kl
from tests.numerics.draws import Draw
from tests.numerics.settings import EXAMPLES

ELSEWHERE = {  # in test_samples.py and test_distributions.py
    *("k1", "k2", "k3", "k3_plus_plus", "k4", "k5", "k_lambda", "kf_plus_plus", "exact_kl"),
    *("exact_forward_kl", "f_divergence", "fused_f_divergence", "linear_f_divergence", "top_k_f_divergence"),
    *("truncated_f_divergence", "ESTIMATORS", "DIVERGENCES", "get_estimator"),
}
NO_NUMBERS = {  # names, records, and what answers with a formula
    *("KLTerm", "Recipe", "audit_update"),
    *("Divergence", "get_divergence", "register_divergence", "Estimator", "register_estimator", "TopK"),
    *("gradient_weight", "implied_f", "match_divergence", "same_weight", "trace", "value", "split"),
    *("split_of", "reward_transform", "transform_shape", "LogitMoments", "Problem", "Audit", "OBJECTIVES"),
    *("register_objective", "audit_setting", "amari_alpha", "power_divergence", "bandit", "prefix_tree"),
}
DIVERGENCE = tuple(kl.DIVERGENCES)
SAMPLED = ("k1", "k2", "k3", "k3_plus_plus", "k4", "k5", "kf_plus_plus(pearson)", "kf_plus_plus(forward_kl)")
HOW = ("sum", "sequence_mean", "token_mean", "constant")


def _tokens(d: Draw, rows: torch.Tensor) -> torch.Tensor:
    return torch.tensor([d.whole(0, rows.shape[-1] - 1) for _ in range(rows.shape[0])])


def _fused(function: Callable[..., Any]) -> Callable[[Draw], Any]:
    def call(d: Draw) -> Any:
        a, b = d.rows(2, vocab=3), d.rows(2, vocab=3)
        return function(d.leaf(a), d.one(a, b), temperature=d.scalar())

    return call


def _linear(function: Callable[..., Any], *, tokens: bool) -> Callable[[Draw], Any]:
    def call(d: Draw) -> Any:
        hidden, weight = d.tensor(2, 2, low=-50, high=50), d.tensor(3, 2, low=-50, high=50)
        # in half precision the gradient is as large as 1 / temperature, and overflows as any product does
        half = torch.finfo(d.dtype).bits == 16
        options = {"temperature": d.one(0.01, 1.0, 100.0) if half else d.scalar()}
        options["soft_cap"] = d.one(None, 30.0, d.scalar())
        if tokens:
            return function(d.leaf(hidden), weight, _tokens(d, torch.zeros(2, 3)), **options)
        other = {"ref_hidden": d.tensor(2, 2, low=-50, high=50), "ref_weight": weight}
        return function(d.leaf(hidden), weight, **other, **options)

    return call


def _top_k(function: Callable[..., Any], *, tokens: bool) -> Callable[[Draw], Any]:
    def call(d: Draw) -> Any:
        a, b = (d.rows(2, vocab=3).log_softmax(-1) for _ in range(2))
        given_ = (d.leaf(a), d.one(a, b))
        options = {"k": d.whole(0, 4), "form": d.one("bregman", "generic", "published")}
        options |= {"head_from": d.one("policy", "reference"), "validate": True}
        if tokens:
            options["tail_weight"] = d.one(None, d.tensor(2, low=0))
        return function(*given_, *([_tokens(d, a)] if tokens else []), **options)

    return call


def _fused_head(d: Draw) -> Any:
    a, b = d.rows(2, vocab=3), d.rows(2, vocab=3).log_softmax(-1)
    tokens, head = _tokens(d, a), torch.tensor([[0, 1], [2, 0]])
    refs = b.gather(-1, head), b.gather(-1, tokens[:, None])[:, 0]
    return kl.fused_top_k_f_divergence(d.one(*DIVERGENCE), d.leaf(a), tokens, head, *refs, validate=True)


def _linear_head(d: Draw) -> Any:
    hidden, weight = d.tensor(2, 2, low=-50, high=50), d.tensor(3, 2, low=-50, high=50)
    b, head, tokens = d.rows(2, vocab=3).log_softmax(-1), torch.tensor([[0, 1], [2, 0]]), torch.tensor([1, 1])
    refs = b.gather(-1, head), b.gather(-1, tokens[:, None])[:, 0]
    return kl.linear_top_k_f_divergence(
        d.one(*DIVERGENCE), d.leaf(hidden), weight, tokens, head, *refs, soft_cap=d.one(None, 30.0)
    )


def _bandit(d: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    d.dtype = torch.float64
    return d.tensor(3), d.rows(vocab=3).log_softmax(-1)


def _ema(d: Draw) -> dict[str, Any]:
    return {"decay": d.share(), "lr": d.scalar(), "beta": d.scalar(), "period": d.whole(0, 3)}


def _fisher(d: Draw) -> torch.Tensor:
    root = d.tensor(2, 2, low=-10, high=10).double()
    return root @ root.T


def _moments(d: Draw) -> dict[str, Any]:
    return {"placement": d.one("loss", "reward"), "n": d.whole(1, 3)}


def _loss(function: Callable[..., Any], **choices: tuple[Any, ...]) -> Callable[[Draw], Any]:
    def call(d: Draw) -> Any:
        options = {name: d.one(*values) for name, values in choices.items()}
        return function(d.rollout(), beta=d.scalar(), **options)

    return call


SCOPES = (None, "token", "prefix", "sequence")
CLIPS = (None, (0.0, 2.0), (0.5, math.inf))
PARTITIONS = ("importance", "lower_bound", "value", "importance_others", "lower_bound_others", "value_others")
CALLS: dict[str, Callable[[Draw], Any]] = {
    "fused_kl": _fused(kl.fused_kl),
    "fused_forward_kl": _fused(kl.fused_forward_kl),
    "fused_logp": lambda d: kl.fused_logp(
        d.leaf(d.rows(2, vocab=3)), torch.tensor([0, 2]), temperature=d.scalar()
    ),
    "fused_logp_and_entropy": lambda d: kl.fused_logp_and_entropy(
        d.leaf(d.rows(2, vocab=3)), torch.tensor([0, 2]), temperature=d.scalar(), validate=True
    ),
    "fused_top_k_f_divergence": _fused_head,
    "linear_kl": _linear(kl.linear_kl, tokens=False),
    "linear_forward_kl": _linear(kl.linear_forward_kl, tokens=False),
    "linear_logp": _linear(kl.linear_logp, tokens=True),
    "linear_logp_and_entropy": _linear(kl.linear_logp_and_entropy, tokens=True),
    "linear_top_k_f_divergence": _linear_head,
    "top_k_reverse_kl": _top_k(kl.top_k_reverse_kl, tokens=True),
    "top_k_forward_kl": _top_k(kl.top_k_forward_kl, tokens=True),
    "truncated_kl": _top_k(kl.truncated_kl, tokens=False),
    "mass_penalty_optimum": lambda d: kl.mass_penalty_optimum(
        _bandit(d)[1], torch.tensor([0, 1]), d.scalar(), d.one(*DIVERGENCE)
    ),
    "top_k_mass_optimum": lambda d: kl.top_k_mass_optimum(_bandit(d)[1], d.whole(0, 3)),
    "multiplier_range": lambda d: kl.multiplier_range(*_bandit(d), d.one(*DIVERGENCE), d.scalar()),
    "optimal_policy": lambda d: kl.optimal_policy(
        *_bandit(d), d.one(*DIVERGENCE), d.scalar(), outside=d.one("forbidden", "allowed")
    ),
    "policy_at": lambda d: kl.policy_at(d.scalar(), *_bandit(d), d.one(*DIVERGENCE), d.scalar()),
    "lag_factor": lambda d: kl.lag_factor(d.scalar(), d.share(), steps=d.whole(0, 5)),
    "lag_matrix": lambda d: kl.lag_matrix(fisher=_fisher(d), **_ema(d)),
    "oscillation_threshold": lambda d: kl.oscillation_threshold(d.share(), steps=d.whole(0, 5)),
    "regime": lambda d: kl.regime(max_fisher_eigenvalue=d.scalar(), **_ema(d)),
    "stability_threshold": lambda d: kl.stability_threshold(
        d.share(), steps=d.whole(0, 5), order=d.one("new", "old")
    ),
    "steady_kl": lambda d: kl.steady_kl(fisher=_fisher(d), gradient=d.tensor(2).double(), **_ema(d)),
    "steady_lag": lambda d: kl.steady_lag(fisher=_fisher(d), gradient=d.tensor(2).double(), **_ema(d)),
    "transformed_rewards": lambda d: kl.transformed_rewards(
        *_bandit(d), d.one(*DIVERGENCE), d.one(*DIVERGENCE), d.scalar()
    ),
    "Rollout": lambda d: list(vars(d.rollout()).values()),
    "aggregate": lambda d: kl.aggregate(
        d.tensor(2, 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]]), d.one(*HOW), length=d.one(None, d.scalar())
    ),
    "credit": lambda d: kl.credit(
        d.tensor(2, 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]]), discount=d.one(d.share(), d.scalar())
    ),
    "center": lambda d: kl.center(
        d.tensor(3), d.groups(3), d.one("leave_one_out", "mean", "standardized", "none"), eps=d.scalar()
    ),
    "leave_one_out": lambda d: kl.leave_one_out(d.tensor(3), d.groups(3)),
    "importance_ratio": lambda d: kl.importance_ratio(
        d.rollout(), scope=d.one(*SCOPES[1:]), clip=d.one(*CLIPS), missing=d.one("raise", "ignore")
    ),
    "importance_weight": lambda d: kl.importance_weight(
        d.rollout(), scope=d.one(*SCOPES[1:]), clip=d.one(*CLIPS), missing=d.one("raise", "ignore")
    ),
    "per_token": lambda d: kl.per_token(d.one(*SAMPLED), d.rollout()),
    "kl_loss": lambda d: kl.kl_loss(
        d.rollout(),
        d.one(*SAMPLED),
        beta=d.scalar(),
        level=d.one("token", "sequence"),
        how=d.one("sum", "token_mean"),
        importance=d.one(*SCOPES),
        clip=d.one(*CLIPS),
    ),
    "kl_terms": lambda d: kl.kl_terms(
        d.rollout(), d.one(*SAMPLED), level=d.one("token", "sequence"), importance=d.one(*SCOPES)
    ),
    "kl_reward": lambda d: kl.kl_reward(
        d.rollout(), d.one(*SAMPLED), beta=d.scalar(), level=d.one("token", "sequence")
    ),
    "policy_gradient_loss": lambda d: (
        lambda r: kl.policy_gradient_loss(r, d.tensor(r.tokens.shape[0]), how=d.one("sum", "token_mean"))
    )(d.rollout()),
    "apa_loss": _loss(kl.apa_loss, partition=PARTITIONS),
    "rwr_loss": _loss(kl.rwr_loss),
    "reinforce_loss": _loss(kl.reinforce_loss, penalty=SAMPLED),
    "target_loss": _loss(kl.target_loss, estimator=("k1", "k2", "k3", "k4"), partition=PARTITIONS),
    "f_policy_loss": _loss(kl.f_policy_loss, divergence=DIVERGENCE, partition=PARTITIONS),
    "log_partition": _loss(kl.log_partition, how=PARTITIONS),
    "ppo_mask": lambda d: kl.ppo_mask(d.tensor(3), d.tensor(3, low=0), d.scalar(), d.scalar()),
    "decompose": lambda d: kl.decompose(
        d.tensor(3).double(), one=d.tensor(3).double(), other=d.tensor(3).double()
    ),
    "descend": lambda d: kl.descend(
        lambda r: kl.kl_loss(r, "k2"), d.problem(), steps=d.whole(0, 2), lr=d.scalar()
    ),
    "draw_statistics": lambda d: kl.draw_statistics(d.one(*SAMPLED), d.problem()),
    "exact_field": lambda d: kl.exact_field(d.one(*SAMPLED), d.problem()),
    "exact_moments": lambda d: kl.exact_moments(d.one(*SAMPLED), d.problem(), **_moments(d)),
    "expected_gradient": lambda d: kl.expected_gradient(lambda r: kl.kl_loss(r, "k2"), d.problem()),
    "expected_value": lambda d: kl.expected_value(lambda r: kl.kl_loss(r, "k3"), d.problem()),
    "fisher_matrix": lambda d: kl.fisher_matrix(d.problem()),
    "follow_anchor": lambda d: kl.follow_anchor(d.problem(), iterations=2, **_ema(d)),
    "learn": lambda d: kl.learn(
        d.problem(), d.one(*SAMPLED), beta=d.scalar(), steps=2, lr=d.scalar(), n=d.one(None, 2)
    ),
    "logit_moments": lambda d: kl.logit_moments(
        d.one(*SAMPLED), d.rows(2, vocab=3), d.rows(2, vocab=3), **_moments(d), temperature=d.scalar()
    ),
    "token_moments": lambda d: kl.token_moments(
        d.one(*SAMPLED), *(d.rows(vocab=3).double().log_softmax(-1) for _ in range(2)), **_moments(d)
    ),
    "token_statistics": lambda d: kl.token_statistics(
        d.one(*SAMPLED), *(d.rows(vocab=3).double().log_softmax(-1) for _ in range(2))
    ),
    "simulate": lambda d: kl.simulate(d.one(*SAMPLED), d.problem(), d.whole(1, 2), repeats=2, seed=0),
    "stack": lambda d: kl.stack([p := d.problem(), p]).logits.exp(),
    "truncate": lambda d: kl.truncate(d.problem(), top_k=d.one(None, 1), top_p=d.share()).logits.exp(),
}
SLOW = {"audit": lambda d: kl.audit(d.one(*SAMPLED), problems=[d.problem()])}


def numbers(result: Any) -> Iterator[torch.Tensor]:
    """All numbers of an answer, whatever record they stand in."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, float):
        yield torch.tensor(result)
    elif isinstance(result, dict):
        yield from numbers(list(result.values()))
    elif isinstance(result, list | tuple):
        for item in result:
            yield from numbers(item)
    elif is_dataclass(result):
        yield from numbers([getattr(result, field.name) for field in fields(result)])


def test_every_public_name_is_tried() -> None:
    tried = [set(CALLS), set(SLOW), ELSEWHERE, NO_NUMBERS]
    assert set().union(*tried) == set(kl)
    assert sum(map(len, tried)) == len(set(kl))


def check(call: Callable[[Draw], Any], data: Any) -> None:
    """An answer without NaN, whose gradient holds none where the answer is finite, or a ValueError."""
    d = Draw(data)
    try:
        result = call(d)
    except ValueError:
        return
    found = list(numbers(result))
    assert not [x for x in found if x.isnan().any()], result
    for x in found:
        if x.requires_grad and x.isfinite().all():
            slopes = torch.autograd.grad(x.sum(), d.leaves, retain_graph=True, allow_unused=True)
            assert not [s for s in slopes if s is not None and s.isnan().any()], (result, slopes)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_or_an_error(name: str, data: Any) -> None:
    check(CALLS[name], data)


@settings(EXAMPLES, max_examples=max(1, EXAMPLES.max_examples // 10))
@given(data=st.data())
@pytest.mark.parametrize("name", SLOW)
def test_an_answer_or_an_error_of_what_takes_seconds(name: str, data: Any) -> None:
    check(SLOW[name], data)
