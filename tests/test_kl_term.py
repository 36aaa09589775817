"""A KL term of one number per token: summed up it is `kl_loss`, whatever computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kl_companion.estimators.registry import ESTIMATORS
from kl_companion.kl_term import KLTerm, as_term, penalties, token_costs, token_terms
from kl_companion.losses import kl_loss, kl_reward
from kl_companion.rollout import Rollout, credit

B, T, V = 3, 4, 6
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0]])
FAMILIES = [
    "f_divergence(pearson)",
    "top_k_reverse_kl(2)",
    "top_k_forward_kl(3, generic)",
    "top_k_f_divergence(jensen_shannon, 2)",
    "truncated_kl(2)",
    "top_k_reverse_kl(0)",
]


def rollout(*, off_policy: bool = True) -> tuple[Rollout, torch.Tensor]:
    """Samples of a random policy in float64, and its logits."""
    draw = torch.Generator().manual_seed(0)
    logits, ref_logits, other = (torch.randn(B, T, V, generator=draw, dtype=torch.float64) for _ in range(3))
    tokens = torch.randint(V, (B, T), generator=draw)
    logits.requires_grad_()
    made = Rollout.from_logits(tokens, MASK, logits, ref_logits)
    if off_policy:
        old = other.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        parts = {name: getattr(made, name) for name in ("logp", "ref_logp", "logits", "ref_logits")}
        made = Rollout(tokens, MASK, behavior_logp=old, **parts)
    return made, logits


def same(term: KLTerm, **options: Any) -> None:
    """The terms, summed over tokens and averaged over sequences, are `kl_loss` and have its gradient."""
    made, logits = rollout()
    x = token_terms(term, made)
    assert x.shape == (B, T)
    assert not x[MASK == 0].any()
    (ours,) = torch.autograd.grad(x.sum(-1).mean(), logits)
    made, logits = rollout()
    loss = kl_loss(made, term.estimator, **options)
    (wanted,) = torch.autograd.grad(loss, logits)
    assert (x.sum(-1).mean() - loss).abs() < 1e-12
    assert (ours - wanted).abs().max() < 1e-12
    assert wanted.abs().max() > 1e-3


@pytest.mark.parametrize(
    "name", [*(n for n, e in ESTIMATORS.items() if n != "k1" and e.inputs != "top_k"), *FAMILIES]
)
def test_terms_sum_to_the_loss(name: str) -> None:
    term = KLTerm(name)
    same(term, importance={"vocab": None}.get(term.entry.inputs, "token"))
    same(KLTerm(name, importance=None))


@pytest.mark.parametrize("scope", ["token", "prefix", "sequence"])
@pytest.mark.parametrize("ratio", ["detached", "attached"])
@pytest.mark.parametrize("name", ["k2", "k3", "exact_kl"])
def test_every_ratio(name: str, ratio: Any, scope: Any) -> None:
    options = {"importance": scope, "ratio": ratio, "clip": (0.5, 1.5)}
    same(KLTerm(name, **options), **options)


def test_the_estimator_of_whole_sequences() -> None:
    same(KLTerm("k2", level="sequence"), level="sequence", importance="sequence")
    same(KLTerm("k3", level="sequence", importance=None), level="sequence")
    x = token_terms(KLTerm("k2", level="sequence"), rollout()[0])
    assert x[0, 0] == x[0, 3]  # spread evenly over the sequence's tokens


@pytest.mark.parametrize("name", ["k1", "k3", "exact_kl", "top_k_reverse_kl(2)"])
def test_penalties_are_those_of_kl_reward(name: str) -> None:
    made, _ = rollout(off_policy=False)
    term = KLTerm(name, "reward", "sequence")
    costs = token_costs(term, made)
    assert not costs.requires_grad
    assert (penalties(term, costs, MASK) - kl_reward(made, name, beta=1.0)).abs().max() < 1e-12
    each = kl_reward(made, name, beta=1.0, level="token")
    assert (costs - each).abs().max() < 1e-12
    for discount in (0.1, 0.5, 1.0):
        term = KLTerm(name, "reward", credit=discount)
        assert (penalties(term, costs, MASK) - credit(each, MASK, discount=discount)).abs().max() < 1e-12


def test_a_name_is_a_term_in_the_loss() -> None:
    assert as_term("k3") == KLTerm("k3", "loss", "token", "auto", "detached", None, 1.0)
    assert as_term(ESTIMATORS["k3"]).entry is ESTIMATORS["k3"]
    term = KLTerm("k1", "reward")
    assert as_term(term) is term
    assert (KLTerm("k2").scope, KLTerm("exact_kl").scope, term.scope) == ("token", None, None)
    assert KLTerm("k2", level="sequence").scope == "sequence"
    assert not KLTerm("k2").needs_logits
    assert KLTerm("top_k_reverse_kl(2)").needs_logits


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"estimator": "exact_k"}, "Did you mean 'exact_kl'"),
        ({"estimator": "k33", "placement": "reward"}, "unknown estimator 'k33'"),
        ({"placement": "bath"}, "unknown placement 'bath'. Did you mean 'both'"),
        ({"level": "word"}, "unknown level"),
        ({"ratio": "both"}, "unknown ratio"),
        ({"importance": "both"}, "unknown importance"),
        ({"placement": "reward", "credit": 1.5}, "credit is 1.5"),
        ({"estimator": "exact_kl", "placement": "reward", "credit": 0.0}, "its gradient is zero"),
        ({"credit": 0.5}, "expected 'reward' and 'token'"),
        ({"placement": "reward", "importance": "token"}, "the policy gradient brings its own ratio"),
        ({"placement": "reward", "clip": (0.0, 2.0)}, "the policy gradient brings its own ratio"),
        ({"estimator": "exact_kl", "level": "sequence"}, "expected a sampled estimator"),
        (
            {"level": "sequence", "importance": "token"},
            "='token': expected importance None or 'sequence'",
        ),
        ({"importance": None, "ratio": "attached"}, "ratio='attached', clip=None got importance=None"),
        ({"estimator": "exact_kl", "clip": (0.0, 2.0)}, "got importance=None: .* the scope of the ratio"),
        ({"estimator": "top_k_reverse_kl(2)", "importance": "prefix"}, "the sampled tail only"),
        ({"estimator": "top_k_reverse_kl(2)", "ratio": "attached"}, "the sampled tail only"),
        ({"estimator": "top_k_reverse_kl(2)", "placement": "score"}, "credit=1.0: expected .* no credit"),
        ({"estimator": "top_k_forward_kl(2)", "level": "sequence"}, "reads next-token distributions"),
        ({"placement": "score", "importance": None, "ratio": "attached"}, "got importance=None"),
        ({"placement": "both", "importance": None, "clip": (0.5, 2.0)}, "got importance=None"),
        ({"placement": "both", "level": "sequence"}, "placement='both', .* expected 'token'"),
        ({"placement": "score", "level": "sequence"}, "placement='score', .* or no credit"),
        ({"placement": "reward", "ratio": "attached"}, "the policy gradient brings its own ratio"),
        ({"placement": "reward", "level": "sequence", "credit": 0.5}, "expected 'reward' and 'token'"),
        ({"level": "sequence", "importance": "prefix"}, "got importance='prefix': expected importance None"),
        ({"credit": "all"}, "credit is 'all', expected a number"),
        ({"credit": float("nan")}, "credit is nan, expected a number from 0 to 1"),
        ({"clip": (2.0, 1.0)}, r"clip is \(2.0, 1.0\), expected \(lowest, highest\)"),
        ({"missing": "skip"}, "unknown missing 'skip'"),
        ({"estimator": 3}, "estimator is 3, expected a name or a function"),
    ],
)
def test_choices_that_do_not_go_together(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KLTerm(**choices)


def test_log_probs_alone_are_not_enough() -> None:
    made, _ = rollout(off_policy=False)
    bare = Rollout(made.tokens, MASK, made.logp, made.ref_logp)
    for name in ("exact_kl", "top_k_reverse_kl(2)"):
        with pytest.raises(ValueError, match="needs logits; this Rollout holds sampled log-probs only"):
            token_terms(KLTerm(name), bare)
    with pytest.raises(ValueError, match="k is 7, expected at most 6"):
        token_terms(KLTerm("top_k_reverse_kl(7)"), made)
