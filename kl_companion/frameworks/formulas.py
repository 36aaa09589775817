"""Formulas that frameworks share: estimates, ratios, aggregation, and placement.

The estimators are the package's own; frameworks differ in what they clamp, weight and aggregate, and their
files hold these differences. Policy gradients are REINFORCE with the ratio of policy to sampler attached
to every token, which is what a PPO loss is inside its clip range; on-policy the ratio is 1. A baseline has
mean zero and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kl_companion.auditing.updates.advantages import whitened
from kl_companion.estimators.registry import get_estimator
from kl_companion.rollout import Rollout, aggregate, credit, masked, per_token

__all__ = ["estimate", "exact", "nothing", "whitened"]
Loss = Callable[[Rollout], torch.Tensor]  # a scalar
Terms = Callable[[Rollout], torch.Tensor]  # a rollout's KL estimates, [batch, seq]
GATHERED = {"tokens": "sum / tokens of the batch", "sequences": "mean over sequences of token means"}
CHARGED = {True: "sum of what follows", False: "each token its own term"}  # by whether it is ahead


def token_sum(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Sum over the tokens of the batch, divided by a constant number of them (see `records`)."""
    return aggregate(x, rollout.completion_mask)


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
    rollout: Rollout,
    *,
    kind: str,
    of: Literal["policy", "sampler"] = "policy",
    input_clamp: float | None = None,
    output_clamp: float | None = None,
    weight: torch.Tensor | Literal["ratio"] | None = None,
    finite: bool = False,
) -> torch.Tensor:
    """An estimate of KL(policy || reference) per token, clamped as frameworks do; [batch, seq].

    Args:
        rollout: The samples.
        kind: ``"abs"``, or a registered sampled estimator of log-probs.
        of: Whose log-probs are compared with the reference: the policy's, with their gradient, or those of
            the policy that sampled.
        input_clamp: Largest size of the log-ratio.
        output_clamp: Largest size of the weighted value.
        weight: [batch, seq], multiplied before the output is clamped; ``"ratio"`` is `ratio`.
        finite: Put zero where the value is no finite number.
    """
    log_w = rollout.ref_logp - (rollout.logp if of == "policy" else rollout.sampled_from)
    if input_clamp is not None:
        log_w = log_w.clamp(-input_clamp, input_clamp)
    x = log_w.abs() if kind == "abs" else get_estimator(kind).fn(-log_w, torch.zeros_like(log_w))
    if weight is not None:
        x = x * (ratio(rollout) if weight == "ratio" else weight)
    x = x if output_clamp is None else x.clamp(-output_clamp, output_clamp)
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) if finite else x


def exact(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """A registered divergence of the distributions before every token, [batch, seq]."""
    return per_token(kind, rollout)


def nothing(rollout: Rollout) -> torch.Tensor:
    """Zeros, [batch, seq]: the term of an option that is read and not used."""
    return rollout.logp - rollout.logp


def in_loss(terms: Terms, how: Literal["tokens", "sequences"] = "tokens") -> Loss:
    """The loss that differentiates terms, aggregated over tokens or over sequences."""

    def loss(rollout: Rollout) -> torch.Tensor:
        mode: Literal["sum", "sequence_mean"] = "sum" if how == "tokens" else "sequence_mean"
        return aggregate(terms(rollout), rollout.completion_mask, mode)

    return loss


def in_reward(terms: Terms, *, ahead: bool) -> Loss:
    """The loss that charges terms, detached, to the tokens before them too, or to their own token."""

    def loss(rollout: Rollout) -> torch.Tensor:
        return charged(terms(rollout), rollout, ahead=ahead)

    return loss
