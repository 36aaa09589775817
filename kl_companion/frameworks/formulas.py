"""What the formulas of frameworks that cannot be installed have in common, in our own words.

The estimators are the package's own; frameworks differ in what they clamp, weight and aggregate, and that is
what their files here say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kl_companion.estimators.registry import get_estimator
from kl_companion.frameworks.dividing import Division
from kl_companion.frameworks.installed import Place
from kl_companion.frameworks.placing import charged, sequence_mean, token_sum
from kl_companion.frameworks.settings import Setting
from kl_companion.rollout import Rollout

Terms = Callable[[Rollout], torch.Tensor]  # a rollout's KL estimates, [batch, seq]
TOKENS = "sum / tokens of the batch"
SEQUENCES = "mean over sequences of token means"


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


def in_loss(
    name: str,
    option: str,
    terms: Terms,
    place: Place,
    *,
    how: Literal["tokens", "sequences"] = "tokens",
    default: str = "",
    note: str = "",
    sampled: bool = True,
    divided: tuple[Division, ...] = (),
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
        divided=divided,
    )


def in_reward(
    name: str,
    option: str,
    terms: Terms,
    place: Place,
    *,
    ahead: bool,
    default: str = "",
    note: str = "",
    divided: tuple[Division, ...] = (),
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
        divided=divided,
    )
