"""A recipe as a record: what goes together, what it refuses, and what it does with a batch in the hand."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch

from kl_companion.auditing.updates import Recipe
from kl_companion.kl_term import KLTerm
from kl_companion.rollout import Rollout
from tests.support.rollouts import NAN, doubles

MASK = torch.tensor([[0, 1, 1], [1, 0, 1]])
LOGP = doubles([NAN, -1.0, -2.0], [-0.5, NAN, -3.0])
REF = doubles([NAN, -1.5, -1.0], [-0.5, NAN, -2.0])
MU = doubles([NAN, -0.8, -2.2], [-0.6, NAN, -2.5])
OLD = doubles([NAN, -1.2, -1.9], [-0.4, NAN, -3.2])
K1 = KLTerm("k1", "reward")


def rollout(**changes: Any) -> Rollout:
    """Two answers with a token of the prompt or of a tool in each; NaN there."""
    fields = {"logp": LOGP.clone().requires_grad_(), "behavior_logp": MU, "rewards": torch.tensor([3, 1])}
    tokens = torch.zeros(2, 3, dtype=torch.long)
    return Rollout(**{"tokens": tokens, "completion_mask": MASK, "ref_logp": REF, **fields, **changes})


def at(x: torch.Tensor) -> list[float]:
    """The tokens under the mask."""
    assert x[MASK == 0].abs().max() == 0
    return x[MASK.bool()].tolist()


# log pi - log ref: 0.5, -1 and 0, -1; log old - log ref: 0.3, -0.9 and 0.1, -1.2


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        (Recipe("mean"), [1, 1, -1, -1]),
        (Recipe("leave_one_out"), [2, 2, -2, -2]),
        (Recipe("none"), [3, 3, 1, 1]),
        (Recipe("mean", K1, 1.0), [0.75, 0.75, -0.75, -0.75]),
        (Recipe("mean", K1, 1.0, "after"), [1.5, 2, 0, 0]),
        (Recipe("mean", replace(K1, credit=0.5), 1.0, "after"), [1, 2, -0.75, 0]),
        (Recipe("mean", replace(K1, level="sequence"), 1.0, "after"), [1.5, 1.5, 0, 0]),
        (Recipe("none", K1, 1.0), [3.5, 4, 2, 2]),
        (Recipe("none", replace(K1, credit=0.5), 1.0), [3, 4, 1.25, 2]),
        (Recipe("none", critic=lambda ro: torch.arange(6.0).view(2, 3)), [2, 1, -2, -4]),
        (Recipe("whitened", eps=1.0, unbiased=False), [x / math.sqrt(2) for x in (1, 1, -1, -1)]),
        (Recipe("mean", normalize=lambda x: x.cumsum(-1)), [3, 3, 4, 4]),
        (Recipe("none", normalize=lambda x: x.cumsum(-1)), [3, 6, 7, 8]),
    ],
)
def test_advantages_by_hand(recipe: Recipe, wanted: list[float]) -> None:
    found = recipe.advantages(rollout())
    assert not found.requires_grad
    assert at(found) == pytest.approx(wanted, rel=1e-14)


def test_the_penalty_is_that_of_the_policy_before_the_first_update() -> None:
    recipe = Recipe("none", K1, 1.0)
    assert at(recipe.advantages(rollout(), OLD)) == pytest.approx([3.6, 3.9, 2.1, 2.2], rel=1e-14)
    attached = OLD.clone().requires_grad_()
    loss = recipe.loss(rollout(), attached)
    assert torch.autograd.grad(loss, attached, allow_unused=True) == (None,)
    # a term in the loss goes with the policy
    term = Recipe("mean", KLTerm("k1", "loss", importance=None), 1.0, policy_loss="reinforce")
    assert term.loss(rollout(), OLD).item() == term.loss(rollout()).item()


def test_the_ratio_is_to_the_sampler_or_with_a_cap_to_the_policy_before() -> None:
    plain, capped = (Recipe("none", policy_loss="importance", sampler_cap=c) for c in (None, 1.1))

    def by_hand(old: torch.Tensor, weight: torch.Tensor) -> float:
        ratio = (LOGP - old).exp() * weight
        return -(ratio * doubles([3.0], [1.0]))[MASK.bool()].mean().item()

    assert plain.loss(rollout()).item() == pytest.approx(by_hand(MU, torch.ones(2, 3)), rel=1e-14)
    assert plain.loss(rollout(), OLD).item() == plain.loss(rollout()).item()
    weight = (LOGP - MU).exp().clamp(max=1.1)
    assert capped.loss(rollout()).item() == pytest.approx(by_hand(LOGP, weight), rel=1e-14)
    weight = (OLD - MU).exp().clamp(max=1.1)
    assert (weight[MASK.bool()] == 1.1).sum() > 0
    assert capped.loss(rollout(), OLD).item() == pytest.approx(by_hand(OLD, weight), rel=1e-14)
    attached = OLD.clone().requires_grad_()
    assert torch.autograd.grad(capped.loss(rollout(), attached), attached, allow_unused=True) == (None,)


@pytest.mark.parametrize(
    ("recipe", "kept"),
    [
        # ratios e^-0.2, e^0.2 and e^0.1, e^-0.5
        (Recipe("none", keep_ratios=(0.7, 1.2)), [1, 0, 1, 0]),
        (Recipe("none", keep_ratios=(math.exp(-0.5) - 1e-12, math.exp(0.2) + 1e-12)), [1, 1, 1, 1]),
        (Recipe("none", keep_ratios=(0.0, math.inf)), [1, 1, 1, 1]),
        # the mean of log sampler - log policy is 0 and 0.2
        (Recipe("mean", keep_kl=0.1), [1, 1, 0, 0]),
        (Recipe("mean", keep_kl=0.3), [1, 1, 1, 1]),
        (Recipe("mean", keep_kl=-0.1), [1, 1, 0, 0]),
        (Recipe("none", keep_kl=0.1), [1, 1, 1, 1]),
        (Recipe("mean", keep_kl=0.1, keep_ratios=(0.9, 2.0)), [0, 1, 0, 0]),
    ],
)
def test_tokens_that_are_left_out_are_counted_still(recipe: Recipe, kept: list[int]) -> None:
    ro = rollout()
    plain = replace(recipe, policy_loss="reinforce")
    (slope,) = torch.autograd.grad(plain.loss(ro), ro.logp)
    a = at(plain.advantages(ro))
    assert at(slope) == pytest.approx([-k * x / 4 for k, x in zip(kept, a, strict=True)], rel=1e-14)


def test_entropy_is_that_of_the_policy_and_is_added_whatever_is_left_out() -> None:
    logits = torch.zeros(2, 3, 4).double().requires_grad_()
    logp = logits.log_softmax(-1)[..., 0]
    ro = rollout(logp=logp, logits=logits, behavior_logp=None)
    found = Recipe("mean", entropy=0.5, keep_ratios=(2.0, 3.0)).loss(ro)
    assert found.item() == pytest.approx(-0.5 * math.log(4), rel=1e-14)


def test_a_recipe_if_nothing_is_said() -> None:
    said = Recipe(
        advantage="group_std",
        kl=None,
        beta=0.04,
        penalty="before",
        policy_loss="ppo",
        clip=(0.2, 0.2),
        dual_clip=None,
        aggregate="token_mean",
        length=None,
        entropy=0.0,
        eps=1e-4,
        unbiased=True,
        sampler_cap=None,
        keep_ratios=None,
        keep_kl=None,
        critic=None,
        gamma=1.0,
        lam=1.0,
        normalize=None,
        name="",
    )
    assert Recipe() == said
    with pytest.raises(FrozenInstanceError):
        said.beta = 1.0  # type: ignore[misc]


def test_properties() -> None:
    assert [Recipe(kl=k).charges for k in (None, KLTerm("k1"), K1)] == [False, False, True]
    assert [Recipe(a).of_tokens for a in ("none", "mean", "whitened")] == [True, False, True]
    assert Recipe(clip=[0.1, 0.2], keep_ratios=[0.5, 2]) == Recipe(clip=(0.1, 0.2), keep_ratios=(0.5, 2))  # type: ignore[arg-type]


EXACT = KLTerm("exact_kl", "reward")
OF_LOGITS = {"logits": torch.zeros(2, 3, 4).double(), "ref_logits": torch.zeros(2, 3, 4).double()}


def test_one_answer_cannot_be_compared_and_one_prompt_may_have_any_number() -> None:
    (one,) = rollout().batches([[0]])
    for how in ("mean", "leave_one_out", "group_std", "batch_std", "others_std"):
        with pytest.raises(ValueError, match="got a group of 1 answer, expected at least two"):
            Recipe(how).loss(one)  # type: ignore[arg-type]
    assert Recipe("whitened").loss(one).isfinite()  # of its two tokens
    same = rollout(prompt_index=torch.tensor([7, 7]))
    assert Recipe().loss(same).item() == Recipe().loss(rollout()).item()


def test_whole_distributions_are_charged_as_long_as_the_policy_is_the_same() -> None:
    recipe = Recipe("mean", EXACT, 1.0)
    found = recipe.loss(rollout(**OF_LOGITS), LOGP)
    assert found.item() == recipe.loss(rollout(**OF_LOGITS)).item()
