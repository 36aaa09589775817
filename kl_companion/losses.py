"""KL as a loss that is differentiated, and KL as a penalty inside the reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kl_companion.checks import check_choice
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.rollout import (
    Aggregate,
    Rollout,
    Scope,
    aggregate,
    importance_weight,
    masked,
    per_token,
)
from kl_companion.rollout import credit as credit_ahead

Level = Literal["token", "sequence"]
LEVELS: tuple[Level, ...] = ("token", "sequence")
EstimatorLike = str | Estimator | Callable[..., torch.Tensor]


def _per_sequence(estimator: EstimatorLike, rollout: Rollout) -> torch.Tensor:
    """The estimator applied to the log-probs of whole sequences, [batch]."""
    if isinstance(estimator, str | Estimator):
        entry = get_estimator(estimator)
        if entry.inputs != "sampled":
            raise ValueError(
                f"level='sequence' got {entry.name!r}, which reads next-token distributions; "
                "expected a sampled estimator"
            )
        estimator = entry.fn
    logp = masked(rollout.logp, rollout.completion_mask).sum(-1)
    ref_logp = masked(rollout.ref_logp, rollout.completion_mask).sum(-1)
    return estimator(logp, ref_logp)


def kl_loss(
    rollout: Rollout,
    estimator: EstimatorLike = "k2",
    *,
    beta: float = 1.0,
    level: Level = "token",
    how: Aggregate = "sum",
    length: float | None = None,
    importance: Scope | None = None,
    credit: float | None = None,
) -> torch.Tensor:
    """beta times an estimate of the KL, to be minimized; a scalar.

    What its gradient is depends on every one of these choices: `kl_companion.audit` says.

    Args:
        rollout: The samples.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``.
        beta: KL coefficient.
        level: ``"token"`` sums the estimate of each token; ``"sequence"`` applies the estimator to the
            log-probs of whole sequences.
        how: How tokens become one number, see `aggregate`; level ``"sequence"`` takes the mean.
        length: Tokens to divide by, for ``how="constant"``.
        importance: Weight every term by a detached rho of this scope, see `importance_weight`.
        credit: None differentiates the estimate. A number makes the *value* of the estimate a
            detached cost of the tokens before it, discounted by ``credit``: 0 charges a token with
            its own estimate, 1 with the whole future (see `kl_companion.rollout.credit`).

    Raises:
        ValueError: unknown name or choice, or choices that do not go together.

    Source: tang2025pitfalls, sections 2.2 and 4; wang2025choosing, section 5.1.
    """
    check_choice("level", level, LEVELS)
    weight = None if importance is None else importance_weight(rollout, scope=importance)
    if level == "sequence":
        if how != "sum" or length is not None or credit is not None or importance in ("token", "prefix"):
            raise ValueError(
                f"level='sequence' got how={how!r}, length={length}, importance={importance!r}, "
                f"credit={credit!r}: expected how='sum', no length, importance None or 'sequence', no credit"
            )
        x = _per_sequence(estimator, rollout)
        return beta * (x if weight is None else x * weight[:, 0]).mean()
    x = per_token(estimator, rollout)
    if credit is not None:
        x = credit_ahead(x.detach(), rollout.completion_mask, discount=credit)
        x = x * masked(rollout.logp, rollout.completion_mask)
    return beta * aggregate(x if weight is None else x * weight, rollout.completion_mask, how, length=length)


def kl_reward(
    rollout: Rollout, estimator: EstimatorLike = "k1", *, beta: float, level: Level = "sequence"
) -> torch.Tensor:
    """beta times the estimate, detached: a penalty to subtract from rewards.

    Args:
        rollout: The samples.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``.
        beta: KL coefficient.
        level: ``"sequence"`` returns the sum over each completion, [batch]; ``"token"`` the penalty of
            every token, [batch, seq], zero outside the mask.

    Raises:
        ValueError: unknown name or level.

    Source: tang2025pitfalls, section 4.2; wang2025choosing, section 5.2.
    """
    check_choice("level", level, LEVELS)
    x = masked(per_token(estimator, rollout).detach(), rollout.completion_mask)
    return beta * (x if level == "token" else x.sum(-1))


def policy_gradient_loss(
    rollout: Rollout, advantages: torch.Tensor, *, how: Aggregate = "sum", length: float | None = None
) -> torch.Tensor:
    """REINFORCE: minus the detached advantage times log pi, aggregated; a scalar to be minimized.

    Args:
        rollout: The samples.
        advantages: [batch] or [batch, seq]; detached here.
        how: See `aggregate`.
        length: See `aggregate`.

    Raises:
        ValueError: advantages of another shape.
    """
    a = advantages.detach()
    if a.shape not in (rollout.logp.shape, rollout.logp.shape[:1]):
        raise ValueError(
            f"advantages has shape {list(a.shape)}, expected {list(rollout.logp.shape[:1])} "
            f"(one per sequence) or {list(rollout.logp.shape)} (one per token)"
        )
    mask = rollout.completion_mask
    a = masked(a, mask) if a.ndim == 2 else a.unsqueeze(-1)
    return aggregate(-a * masked(rollout.logp, mask), mask, how, length=length)
