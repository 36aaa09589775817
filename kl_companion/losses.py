"""KL as a loss that is differentiated, and KL as a penalty inside the reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kl_companion.checks import check_choice, check_finite, check_scalar, check_tensor, refuse_nan
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.rollout import (
    Aggregate,
    Missing,
    Rollout,
    Scope,
    aggregate,
    check_rollout,
    importance_ratio,
    masked,
    per_token,
)
from kl_companion.rollout import credit as credit_ahead
from kl_companion.rollout.aggregation import check_aggregate, per_sequence

Level = Literal["token", "sequence"]
Ratio = Literal["detached", "attached"]
LEVELS: tuple[Level, ...] = ("token", "sequence")
RATIOS: tuple[Ratio, ...] = ("detached", "attached")
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
    both = (rollout.logp, rollout.ref_logp)
    return estimator(*(masked(x, rollout.completion_mask).sum(-1) for x in both))


def kl_terms(
    rollout: Rollout,
    estimator: EstimatorLike = "k2",
    *,
    level: Level = "token",
    how: Aggregate = "sum",
    length: float | None = None,
    importance: Scope | None = None,
    ratio: Ratio = "detached",
    clip: tuple[float, float] | None = None,
    missing: Missing = "raise",
    credit: float | None = None,
) -> torch.Tensor:
    """What each sequence contributes to `kl_loss`, [batch]; `exact_moments` takes these terms.

    Arguments and errors as `kl_loss`; ``how="token_mean"`` couples the sequences of a batch and is
    refused here.
    """
    x = _weighted(rollout, estimator, level, how, length, importance, ratio, clip, missing, credit)
    return x if level == "sequence" else per_sequence(x, rollout.completion_mask, how, length=length)


def _weighted(
    rollout: Rollout,
    estimator: EstimatorLike,
    level: Level,
    how: Aggregate,
    length: float | None,
    importance: Scope | None,
    ratio: Ratio,
    clip: tuple[float, float] | None,
    missing: Missing,
    credit: float | None,
) -> torch.Tensor:
    """The estimate times its ratio: [batch, seq], or [batch] at level "sequence"; choices are checked."""
    check_rollout(rollout)
    check_choice("level", level, LEVELS)
    check_choice("ratio", ratio, RATIOS)
    check_aggregate(how, length)
    if importance is None and (ratio != "detached" or clip is not None):
        raise ValueError(
            f"ratio={ratio!r}, clip={clip} got importance=None: expected 'token', 'prefix' or 'sequence', "
            "the scope of the ratio"
        )
    if level == "sequence" and (
        how != "sum" or length is not None or credit is not None or importance in ("token", "prefix")
    ):
        raise ValueError(
            f"level='sequence' got how={how!r}, length={length}, importance={importance!r}, "
            f"credit={credit!r}: expected how='sum', no length, importance None or 'sequence', no credit"
        )
    rho = None
    if importance is not None:
        rho = importance_ratio(rollout, scope=importance, clip=clip, missing=missing)
        rho = rho.detach() if ratio == "detached" else rho
    if level == "sequence":
        x = _per_sequence(estimator, rollout)
        return x if rho is None else refuse_nan("the weighted estimate", x * rho[:, 0], estimate=x)
    if rho is not None and isinstance(estimator, str | Estimator):
        entry = get_estimator(estimator)
        if entry.inputs == "top_k":  # the head is a sum, not a sample: only the tail was drawn from mu
            _check_tail_weight(entry.name, importance, ratio, credit)
            return per_token(entry, rollout, tail_weight=masked(rho, rollout.completion_mask))
    x = per_token(estimator, rollout)
    if credit is not None:
        x = credit_ahead(x.detach(), rollout.completion_mask, discount=credit)
        x = refuse_nan("credit times logp", x * masked(rollout.logp, rollout.completion_mask), credit=x)
    return x if rho is None else refuse_nan("the weighted estimate", x * rho, estimate=x)


def _check_tail_weight(name: str, importance: str | None, ratio: str, credit: float | None) -> None:
    if importance != "token" or ratio != "detached" or credit is not None:
        raise ValueError(
            f"{name} got importance={importance!r}, ratio={ratio!r}, credit={credit!r}: expected 'token', "
            "'detached' and no credit, because the ratio multiplies the sampled tail only"
        )


def kl_loss(
    rollout: Rollout,
    estimator: EstimatorLike = "k2",
    *,
    beta: float = 1.0,
    level: Level = "token",
    how: Aggregate = "sum",
    length: float | None = None,
    importance: Scope | None = None,
    ratio: Ratio = "detached",
    clip: tuple[float, float] | None = None,
    missing: Missing = "raise",
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
        importance: Weight every term by rho = pi/mu of this scope, see `importance_ratio`. Of a top-k
            estimator only the sampled tail is weighted, and only by the detached ratio of the token.
        ratio: ``"detached"`` is sg(rho) times the term; ``"attached"`` keeps rho in the graph, on-policy
            too, where it is 1 and its gradient is the score.
        clip: (lowest, highest) rho; no gradient of rho passes outside.
        missing: What to do where mu has no probability and the policy has, see `importance_ratio`.
        credit: None differentiates the estimate. A number makes the *value* of the estimate a
            detached cost of the tokens before it, discounted by ``credit``: 0 charges a token with
            its own estimate, 1 with the whole future (see `kl_companion.rollout.credit`).

    Raises:
        ValueError: unknown name or choice, choices that do not go together, missing support, a beta that is
            not finite, or numbers that overflow so that the loss would be NaN (which, and where, is named).

    Source: tang2025pitfalls, sections 2.2 and 4; wang2025choosing, sections 5.1 and 6.2.
    """
    check_rollout(rollout)
    check_scalar("beta", beta, dtype=rollout.logp.dtype)
    x = _weighted(rollout, estimator, level, how, length, importance, ratio, clip, missing, credit)
    if level == "sequence":
        return refuse_nan("the loss", beta * x.mean(), estimate=x)
    loss = beta * aggregate(x, rollout.completion_mask, how, length=length)
    return refuse_nan("the loss", loss, estimate=x)


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
        ValueError: unknown name or level, a beta that is not finite, or estimates that overflow so that the
            penalty would be NaN.

    Source: tang2025pitfalls, section 4.2; wang2025choosing, section 5.2.
    """
    check_choice("level", level, LEVELS)
    check_rollout(rollout)
    check_scalar("beta", beta, dtype=rollout.logp.dtype)
    x = masked(per_token(estimator, rollout).detach(), rollout.completion_mask)
    return refuse_nan("the penalty", beta * (x if level == "token" else x.sum(-1)), estimate=x)


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
        ValueError: advantages of another shape or not finite (of tokens: under the mask), or products that
            overflow so that the loss would be NaN.
    """
    check_tensor("advantages", advantages)
    a = advantages.detach()
    if a.shape not in (rollout.logp.shape, rollout.logp.shape[:1]):
        raise ValueError(
            f"advantages has shape {list(a.shape)}, expected {list(rollout.logp.shape[:1])} "
            f"(one per sequence) or {list(rollout.logp.shape)} (one per token)"
        )
    mask = rollout.completion_mask
    a = masked(a, mask) if a.ndim == 2 else a[:, None]
    check_finite("advantages", a)
    return aggregate(-a * masked(rollout.logp, mask), mask, how, length=length)
