"""KL as a loss that is differentiated, and KL as a penalty inside the reward."""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch

from kl_companion.checks import check_choice, check_finite, check_scalar, check_tensor, refuse_nan
from kl_companion.kl_term import (
    LEVELS,
    Estimate,
    EstimatorLike,
    KLTerm,
    Level,
    Ratio,
    penalties,
    weighted_estimates,
)
from kl_companion.rollout import (
    Aggregate,
    Missing,
    Rollout,
    Scope,
    aggregate,
    check_rollout,
    masked,
    per_token,
)
from kl_companion.rollout.aggregation import check_aggregate, per_sequence, reduced


class Choices(TypedDict, total=False):
    """Choices of a `KLTerm` in the loss as `kl_loss` and `kl_terms` take them."""

    level: Level
    importance: Scope | None
    ratio: Ratio
    clip: tuple[float, float] | None
    missing: Missing
    credit: float | None


def _term_of(estimator: EstimatorLike | KLTerm, choices: Choices) -> KLTerm:
    """The term in the loss that the arguments of `kl_loss` say; without an importance there is no ratio."""
    if isinstance(estimator, KLTerm):
        if choices:
            raise ValueError(f"got a KLTerm and {', '.join(choices)}: expected every choice in the term")
        return estimator
    rest = {"importance": None, **choices}
    discount = rest.pop("credit", None)
    if discount is None:
        return KLTerm(estimator, **rest)  # type: ignore[arg-type]
    return KLTerm(estimator, "score", credit=discount, **rest)  # type: ignore[arg-type]


def kl_loss(
    rollout: Rollout,
    estimator: EstimatorLike | KLTerm = "k2",
    *,
    beta: float = 1.0,
    how: Aggregate = "sum",
    length: float | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """beta times an estimate of the KL, to be minimized; a scalar.

    What its gradient is depends on every one of these choices: `kl_companion.audit` says.

    Args:
        rollout: The samples.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``, with the choices
            below; or a `KLTerm`, which holds them.
        beta: KL coefficient.
        how: How tokens become one number, see `aggregate`; level ``"sequence"`` takes the mean.
        length: Tokens to divide by, for ``how="constant"``.
        **choices: Those of `KLTerm`: ``level`` (``"token"``), ``importance`` (None), ``ratio``
            (``"detached"``), ``clip`` (None) and ``missing`` (``"raise"``), and ``credit``. None, the
            default, differentiates the estimate. A number makes the *value* of the estimate a detached
            cost of the tokens before it, discounted by ``credit`` (placement ``"score"``): 0 charges a
            token with its own estimate, 1 with the whole future.

    Raises:
        ValueError: unknown name or choice, choices that do not go together, missing support, a beta that is
            not finite, or numbers that overflow so that the loss would be NaN (which, and where, is named).

    Source: tang2025pitfalls, sections 2.2 and 4; wang2025choosing, sections 5.1 and 6.2.
    """
    return term_loss(rollout, _term_of(estimator, choices), beta=beta, how=how, length=length)


def kl_terms(
    rollout: Rollout,
    estimator: EstimatorLike | KLTerm = "k2",
    *,
    how: Aggregate = "sum",
    length: float | None = None,
    **choices: Unpack[Choices],
) -> torch.Tensor:
    """What each sequence contributes to `kl_loss`, [batch]; `exact_moments` takes these terms.

    Arguments and errors as `kl_loss`; ``how="token_mean"`` couples the sequences of a batch and is
    refused here.
    """
    term = _term_of(estimator, choices)
    x = _weighted(rollout, term, how, length)
    return x if term.level == "sequence" else per_sequence(x, rollout.completion_mask, how, length=length)


def term_loss(
    rollout: Rollout,
    term: KLTerm,
    *,
    beta: float,
    how: Aggregate = "sum",
    length: float | None = None,
    estimate: Estimate = per_token,
) -> torch.Tensor:
    """`kl_loss` of a `KLTerm`, a scalar; training loops give an ``estimate`` that takes the kernels."""
    check_rollout(rollout)
    check_scalar("beta", beta, dtype=rollout.logp.dtype)
    x = _weighted(rollout, term, how, length, estimate)
    mean = x.mean() if term.level == "sequence" else reduced(x, rollout.completion_mask.bool(), how, length)
    return refuse_nan("the loss", beta * mean, estimate=x)


def _weighted(
    rollout: Rollout, term: KLTerm, how: Aggregate, length: float | None, estimate: Estimate = per_token
) -> torch.Tensor:
    """The estimate times its ratio: [batch, seq], or [batch] at level "sequence"; all choices are checked."""
    check_rollout(rollout)
    check_aggregate(how, length)
    if term.level == "sequence" and (how != "sum" or length is not None):
        raise ValueError(
            f"level='sequence' got how={how!r}, length={length}: expected how='sum' and no length"
        )
    x, rho = weighted_estimates(term, rollout, estimate)
    return x if rho is None else refuse_nan("the weighted estimate", x * rho, estimate=x)


def kl_reward(
    rollout: Rollout,
    estimator: EstimatorLike | KLTerm = "k1",
    *,
    beta: float,
    level: Level | None = None,
) -> torch.Tensor:
    """beta times the estimate, detached: a penalty to subtract from rewards.

    Args:
        rollout: The samples.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``; or a `KLTerm`
            in the reward, whose ``level`` and ``credit`` say what is charged.
        beta: KL coefficient.
        level: ``"sequence"``, which None stands for, returns the sum over each completion, [batch];
            ``"token"`` the penalty of every token, [batch, seq], zero outside the mask. Of a `KLTerm` it is
            the term's, and a token's penalty has the later ones in it.

    Raises:
        ValueError: unknown name or level, a term that charges nothing, a level beside a `KLTerm`, a beta
            that is not finite, or estimates that overflow so that the penalty would be NaN.

    Source: tang2025pitfalls, section 4.2; wang2025choosing, section 5.2.
    """
    given = isinstance(estimator, KLTerm)
    if given and level is not None:
        raise ValueError("got a KLTerm and level: expected every choice in the term")
    check_choice("level", level or "sequence", LEVELS)
    term = estimator if isinstance(estimator, KLTerm) else KLTerm(estimator, "reward", level or "sequence")
    if not term.charges:
        raise ValueError(f"placement={term.placement!r} charges nothing: expected 'reward' or 'both'")
    check_rollout(rollout)
    check_scalar("beta", beta, dtype=rollout.logp.dtype)
    x = masked(per_token(term.entry, rollout).detach(), rollout.completion_mask)
    own = x if not given and level == "token" else penalties(term, x, rollout.completion_mask)
    return refuse_nan("the penalty", beta * own, estimate=x)


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
