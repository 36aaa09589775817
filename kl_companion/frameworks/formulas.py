"""Formulas that the adapters of frameworks share: estimates, ratios, aggregation, and placement.

The estimators are the package's own; frameworks differ in what they clamp, weight and aggregate, and their
adapters hold these differences. Policy gradients are REINFORCE with the ratio of policy to sampler attached
to every token, which is what a PPO loss is inside its clip range; on-policy the ratio is 1. A baseline has
mean zero and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kl_companion.estimators.registry import get_estimator
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Setting
from kl_companion.rollout import Rollout, aggregate, credit, masked

Terms = Callable[[Rollout], torch.Tensor]  # a rollout's KL estimates, [batch, seq]
TOKENS = "sum / tokens of the batch"
SEQUENCES = "mean over sequences of token means"


def token_sum(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Sum over the tokens of the batch, divided by a constant number of them (see `records`)."""
    return aggregate(x, rollout.completion_mask)


def sequence_mean(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Mean over sequences of the mean over tokens."""
    return aggregate(x, rollout.completion_mask, "sequence_mean")


def ratio(rollout: Rollout) -> torch.Tensor:
    """pi / mu of every token with its gradient, [batch, seq]; 1 on-policy and outside the mask."""
    return masked(rollout.logp - rollout.sampled_from, rollout.completion_mask).exp()


def score_ratio(rollout: Rollout) -> torch.Tensor:
    """pi / sg(pi) of every token, [batch, seq]: 1, with the score as its gradient."""
    return (rollout.logp - rollout.logp.detach()).exp()


def charged(penalty: torch.Tensor, rollout: Rollout, *, ahead: bool) -> torch.Tensor:
    """The loss that charges every token with a detached penalty; a scalar.

    Args:
        penalty: [batch, seq]; detached here.
        rollout: The samples.
        ahead: Charge a token with the penalties of all that follows (return-to-go), or with its own only.
    """
    cost = credit(penalty.detach(), rollout.completion_mask, discount=1.0 if ahead else 0.0)
    return token_sum(cost * ratio(rollout), rollout)


def estimate(
    kind: str,
    rollout: Rollout,
    *,
    of: Literal["policy", "sampler"] = "policy",
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """An estimate of KL(policy || reference) per token, clamped as frameworks do; [batch, seq].

    Args:
        kind: ``"abs"``, or a registered sampled estimator of log-probs.
        rollout: The samples.
        of: Whose log-probs are compared with the reference: the policy's, with their gradient, or those of
            the policy that sampled.
        input_clamp: Largest size of the log-ratio.
        output_clamp: Largest size of the weighted value.
        weight: [batch, seq], multiplied before the output is clamped.
    """
    log_w = rollout.ref_logp - (rollout.logp if of == "policy" else rollout.sampled_from)
    if input_clamp is not None:
        log_w = log_w.clamp(-input_clamp, input_clamp)
    x = log_w.abs() if kind == "abs" else get_estimator(kind).fn(-log_w, torch.zeros_like(log_w))
    x = x if weight is None else x * weight
    return x if output_clamp is None else x.clamp(-output_clamp, output_clamp)


# the names of verl's `kl_penalty`, which others have copied with it
OF_VERL = {"kl": "k1", "low_var_kl": "k3", "mse": "k2", "abs": "abs"}


def as_verl(kind: str, rollout: Rollout, **options: str) -> torch.Tensor:
    """verl's `kl_penalty` by its name: low_var_kl alone is clamped, before and after; [batch, seq]."""
    clamps = {"input_clamp": 20.0, "output_clamp": 10.0} if kind == "low_var_kl" else {}
    return estimate(OF_VERL[kind], rollout, **clamps, **options)  # type: ignore[arg-type]


def in_loss(
    name: str,
    option: str,
    terms: Terms,
    place: SourceLocation,
    *,
    how: Literal["tokens", "sequences"] = "tokens",
    default: str = "",
    note: str = "",
    sampled: bool = True,
    algorithms: tuple[Algorithm, ...] = (),
    beta: float | None = None,
    read: str = "",
) -> Setting:
    """The setting that differentiates these terms, aggregated over tokens or over sequences."""
    gather = token_sum if how == "tokens" else sequence_mean

    def loss(rollout: Rollout) -> torch.Tensor:
        return gather(terms(rollout), rollout)

    return Setting(
        name=name,
        option=option,
        loss=loss,
        place=place,
        placement="loss",
        level="token",
        aggregation=TOKENS if how == "tokens" else SEQUENCES,
        default=default,
        note=note,
        sampled=sampled,
        algorithms=algorithms,
        beta=beta,
        read=read,
    )


def in_reward(
    name: str,
    option: str,
    terms: Terms,
    place: SourceLocation,
    *,
    ahead: bool,
    default: str = "",
    note: str = "",
    algorithms: tuple[Algorithm, ...] = (),
    beta: float | None = None,
    read: str = "",
) -> Setting:
    """The setting that charges these terms, detached, to the tokens before them or to their own token."""

    def loss(rollout: Rollout) -> torch.Tensor:
        return charged(terms(rollout), rollout, ahead=ahead)

    return Setting(
        name=name,
        option=option,
        loss=loss,
        place=place,
        placement="reward",
        level="sequence" if ahead else "token",
        aggregation="sum of what follows" if ahead else "each token its own term",
        default=default,
        note=note,
        algorithms=algorithms,
        beta=beta,
        read=read,
    )
