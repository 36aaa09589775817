"""A step with one slip in it has another expected update, wherever the slip can be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from kl_companion.auditing.updates import Recipe, expected_update
from kl_companion.kl_term import KLTerm
from kl_companion.tabular import Loss
from tests.support.updates import PROMPTS, SIZES, apart, by_hand, recipe_of, value_of


class Slip(NamedTuple):
    """Choices of a step, what becomes of its recipe, and where it can be seen."""

    choices: dict[str, Any]
    slipped: Callable[[Recipe], Loss]
    worlds: tuple[str, ...] = ("on-policy", "stale", "tree")


def of(**changes: Any) -> Callable[[Recipe], Loss]:
    return lambda recipe: replace(recipe, **changes).loss


def over_groups(x: torch.Tensor) -> torch.Tensor:
    """The mean over the wrong axis."""
    return (x - x.mean(0, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)


def of_twice_as_many(x: torch.Tensor) -> torch.Tensor:
    """The deviation of a list in which every answer stands twice."""
    return (x - x.mean(-1, keepdim=True)) / (torch.cat([x, x], -1).std(-1, keepdim=True) + 1e-3)


def negative(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    return ref_logp - logp


OFF = ("stale", "stale tree")
K1 = {"kl": "k1", "eps": 1e-3}
K3 = {"kl": "k3", "place": "loss"}
CAP = {"cap": 1.1, "low": 0.02, "high": 0.02}
SLIPS = {
    "the mean of another axis": Slip(K1, of(normalize=over_groups)),
    "the deviation of a longer list": Slip(K1, of(normalize=of_twice_as_many)),
    "not divided": Slip(K1, of(advantage="mean")),
    "divided by the variance": Slip(K1, of(normalize=lambda x: (x - x.mean()) / (x.var() + 1e-3))),
    "the eps of another trainer": Slip(K1, of(eps=1e-8)),
    "a biased deviation": Slip(K1, of(unbiased=False)),
    "an unbiased deviation": Slip({**K1, "ddof": 0}, of(unbiased=True)),
    "the penalty after": Slip(K1, of(penalty="after")),
    "the penalty before": Slip({**K1, "place": "after"}, of(penalty="before")),
    "no penalty": Slip(K1, of(kl=None)),
    "the penalty of the wrong sign": Slip(K1, of(kl=KLTerm(negative, "reward"))),
    "the penalty of another estimator": Slip(K1, of(kl=KLTerm("k3", "reward"))),
    "the penalty of a token for that of the answer": Slip(
        {**K1, "place": "after_whole"}, of(kl=KLTerm("k1", "reward")), ("on-policy", "stale")
    ),
    "the penalty in the loss": Slip(K1, of(kl=KLTerm("k1", "loss"))),
    "a term of the wrong sign": Slip(K3, of(kl=KLTerm(lambda p, q: -((q - p).exp() - 1 - q + p), "loss"))),
    "a term of another estimator": Slip(K3, of(kl=KLTerm("k2", "loss"))),
    "a term without its ratio": Slip(
        {"kl": "k3", "place": "loss_weighted"}, of(kl=KLTerm("k3", "loss", importance=None)), OFF
    ),
    "another beta": Slip(K3, of(beta=0.31)),
    "leave one out without its factor": Slip({"advantage": "leave_one_out"}, of(advantage="mean")),
    "whitened by answers": Slip({"advantage": "whitened"}, of(advantage="group_std", eps=0.0)),
    "a critic is forgotten": Slip({"advantage": "none", "critic": value_of}, of(critic=None)),
    "the clip is dropped": Slip({"low": 0.05, "high": 0.05}, of(policy_loss="importance"), OFF),
    "the clip above is that below": Slip({"low": 0.3, "high": 0.02}, of(clip=(0.3, 0.3)), OFF),
    "the dual clip is dropped": Slip(
        {"dual": 1.05, "low": 0.3, "high": 0.5}, of(dual_clip=None), ("stale tree",)
    ),
    "the ratio of tokens for that of answers": Slip({"surrogate": "gspo"}, of(policy_loss="ppo"), OFF),
    "the ratio of answers for that of tokens": Slip({}, of(policy_loss="gspo"), OFF),
    "the weight is not clipped": Slip(
        {"surrogate": "cispo", "low": 0.05, "high": 0.05}, of(clip=(0.9, 9.0)), OFF
    ),
    "no ratio": Slip({"surrogate": "importance"}, of(policy_loss="reinforce"), OFF),
    "the ratio of the wrong policies": Slip(
        CAP, lambda recipe: lambda ro: recipe.loss(ro, ro.sampled_from), OFF
    ),
    "the weight is not truncated": Slip(CAP, of(sampler_cap=99.0), OFF),
    "no weight": Slip(CAP, of(sampler_cap=1.0, clip=(9.0, 9.0)), OFF),
    "the sampler is forgotten": Slip(
        {"surrogate": "importance"},
        lambda recipe: lambda ro: recipe.loss(replace(ro, behavior_logp=None)),
        OFF,
    ),
    "a mask is missing": Slip(
        {"keep_ratios": (0.9, 1.1), "surrogate": "importance"}, of(keep_ratios=None), OFF
    ),
    "a mask that is too wide": Slip(
        {"keep_ratios": (0.9, 1.05), "surrogate": "importance"}, of(keep_ratios=(0.9, 1.5)), OFF
    ),
    "a mask by KL is missing": Slip({"keep_kl": 0.0}, of(keep_kl=None), ("stale tree",)),
    "the mean over answers": Slip({}, of(aggregate="sequence_mean")),
    "the mean over tokens": Slip({"aggregate": "sequence_mean"}, of(aggregate="token_mean")),
    "the longest answer for the tokens": Slip({}, of(aggregate="constant", length=3.0)),
    "another length": Slip({"aggregate": "constant", "length": 3.0}, of(length=4.0)),
    "not divided by the length": Slip(
        {"aggregate": "constant", "length": 3.0}, of(aggregate="sum", length=None)
    ),
    "no entropy": Slip({"entropy": 0.1}, of(entropy=0.0)),
    "entropy of the wrong sign": Slip({"entropy": 0.1}, of(entropy=-0.1)),
}


@pytest.mark.parametrize(("name", "world"), [(n, w) for n, slip in SLIPS.items() for w in slip.worlds])
def test_a_slip_changes_the_expected_update(name: str, world: str) -> None:
    slip, at, size = SLIPS[name], PROMPTS[world], SIZES[world]
    wanted = by_hand(at, size, **slip.choices)
    assert apart(expected_update(slip.slipped(recipe_of(**slip.choices)), at, size), wanted) > 1e-4


@pytest.mark.parametrize(
    "name",
    [
        "the clip is dropped",
        "no ratio",
        "no weight",
        "a mask is missing",
        "the ratio of tokens for that of answers",
    ],
)
def test_a_slip_about_stale_samples_is_not_seen_on_fresh_ones(name: str) -> None:
    slip, at = SLIPS[name], PROMPTS["on-policy"]
    wanted = by_hand(at, 3, **slip.choices)
    assert apart(expected_update(slip.slipped(recipe_of(**slip.choices)), at, 3), wanted) < 1e-12
