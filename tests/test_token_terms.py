"""A KL term of one number per token: summed up it is `kl_loss`, whatever computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kl_companion.estimators.registry import ESTIMATORS
from kl_companion.kl_term import KLTerm, penalties
from kl_companion.losses import kl_loss, kl_reward
from kl_companion.rollout import Rollout, credit
from kl_companion.token_terms import token_costs, token_terms
from tests.support.rollouts import drawn

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
    given = drawn(MASK, V)
    logits = given["logits"].requires_grad_()
    scored = {"behavior_logits": given["behavior_logits"]} if off_policy else {}
    return Rollout.from_logits(given["tokens"], MASK, logits, given["ref_logits"], **scored), logits


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
    same(KLTerm(name, importance=None), importance=None)


@pytest.mark.parametrize("scope", ["token", "prefix", "sequence"])
@pytest.mark.parametrize("ratio", ["detached", "attached"])
@pytest.mark.parametrize("name", ["k2", "k3", "exact_kl"])
def test_every_ratio(name: str, ratio: Any, scope: Any) -> None:
    options = {"importance": scope, "ratio": ratio, "clip": (0.5, 1.5)}
    same(KLTerm(name, **options), **options)


def test_the_estimator_of_whole_sequences() -> None:
    same(KLTerm("k2", level="sequence"), level="sequence", importance="sequence")
    same(KLTerm("k3", level="sequence", importance=None), level="sequence", importance=None)
    x = token_terms(KLTerm("k2", level="sequence"), rollout()[0])
    assert x[0, 0] == x[0, 3]  # spread evenly over the sequence's tokens


@pytest.mark.parametrize("name", ["k1", "k3", "exact_kl", "top_k_reverse_kl(2)"])
def test_penalties_are_those_of_kl_reward(name: str) -> None:
    made, _ = rollout(off_policy=False)
    term = KLTerm(name, "reward", "sequence")
    costs = token_costs(term, made)
    assert not costs.requires_grad
    assert (penalties(term, costs, MASK) - kl_reward(made, name, beta=1.0)).abs().max() < 1e-12
    each = kl_reward(made, name, level="token", credit=None)
    assert (costs - each).abs().max() < 1e-12
    for discount in (0.1, 0.5, 1.0):
        term = KLTerm(name, "reward", credit=discount)
        assert (penalties(term, costs, MASK) - credit(each, MASK, discount=discount)).abs().max() < 1e-12
