"""KL as a loss that is differentiated, and KL as a penalty inside the reward."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch

from kl_companion.checks import check_finite, check_scalar, check_tensor
from kl_companion.kl_term import (
    Estimate,
    EstimatorLike,
    Importance,
    KLTerm,
    Level,
    Ratio,
    flagged_estimates,
    penalties,
    weighted_estimates,
)
from kl_companion.rollout import (
    Aggregate,
    Missing,
    Rollout,
    check_rollout,
    masked,
    per_token,
)
from kl_companion.rollout.aggregation import check_aggregate, per_sequence, reduced
from kl_companion.rollout.flags import Flags

_CHOICES = ("level", "importance", "ratio", "clip", "missing", "credit")
_P = ParamSpec("_P")


def _a_term_has_every_choice(fn: Callable[_P, torch.Tensor]) -> Callable[_P, torch.Tensor]:
    """Refuse choices that a caller passes together with a `KLTerm`, which contains all of them."""

    @wraps(fn)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> torch.Tensor:
        estimator = args[1] if len(args) > 1 else kwargs.get("estimator")
        if isinstance(estimator, KLTerm) and (twice := [name for name in kwargs if name in _CHOICES]):
            raise ValueError(f"got a KLTerm and {', '.join(twice)}: expected every choice in the term")
        return fn(*args, **kwargs)

    return checked


@_a_term_has_every_choice
def kl_loss(
    rollout: Rollout,
    estimator: EstimatorLike | KLTerm = "k2",
    *,
    beta: float | torch.Tensor = 1.0,
    how: Aggregate = "sum",
    length: float | None = None,
    level: Level = "token",
    importance: Importance = "auto",
    ratio: Ratio = "detached",
    clip: tuple[float, float] | None = None,
    missing: Missing = "raise",
    credit: float | None = None,
) -> torch.Tensor:
    """Return beta times an estimate of the KL, to be minimized; a scalar.

    The gradient depends on every one of these choices; `kl_companion.audit` computes it.

    Args:
        rollout: The samples.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``; or a `KLTerm`,
            which contains the six choices from ``level`` on, so that none of them may be passed beside it.
        beta: KL coefficient, a number or a tensor of one.
        how: How tokens become one number, see `aggregate`; level ``"sequence"`` takes the mean.
        length: Tokens to divide by, for ``how="constant"``.
        level: ``"token"``: the estimate of each token; ``"sequence"``: the estimator of the log-probs of
            whole sequences.
        importance: Ratio of the policy to the policy that sampled: ``"token"``, ``"prefix"``,
            ``"sequence"``, None for no ratio, or ``"auto"`` as in `KLTerm`: the ratio of the level, and
            none for an exact estimator. On-policy a detached ratio is 1, and ``"auto"`` equals None.
        ratio: ``"detached"``, or ``"attached"`` to keep the ratio in the graph.
        clip: (lowest, highest) ratio, or None.
        missing: ``"raise"`` or ``"ignore"`` where the sampler has no probability and the policy has.
        credit: None differentiates the estimate. A number makes the *value* of the estimate a detached
            cost of the tokens before it, discounted by ``credit`` (placement ``"score"``): 0 charges a
            token with its own estimate, 1 with the whole future.

    Raises:
        ValueError: unknown name or choice, choices that do not go together, missing support, a beta that is
            not finite, or numbers that overflow so that the loss would be NaN (which, and where, is named).

    Source: tang2025pitfalls, sections 2.2 and 4; wang2025choosing, sections 5.1 and 6.2.
    """
    term = _term_of(estimator, level, importance, ratio, clip, missing, credit)
    return term_loss(rollout, term, beta=beta, how=how, length=length)


@_a_term_has_every_choice
def kl_terms(
    rollout: Rollout,
    estimator: EstimatorLike | KLTerm = "k2",
    *,
    how: Aggregate = "sum",
    length: float | None = None,
    level: Level = "token",
    importance: Importance = "auto",
    ratio: Ratio = "detached",
    clip: tuple[float, float] | None = None,
    missing: Missing = "raise",
    credit: float | None = None,
) -> torch.Tensor:
    """Return the contribution of each sequence to `kl_loss`, [batch]; `exact_moments` takes these terms.

    Arguments and errors are those of `kl_loss`. ``how="token_mean"`` couples the sequences of a batch and
    is refused.
    """
    term = _term_of(estimator, level, importance, ratio, clip, missing, credit)
    flags = Flags()
    x = _weighted(rollout, term, how, length, per_token, flags)
    if term.level == "token":
        x = per_sequence(x, rollout.completion_mask.bool(), how, length, flags)
    flags.settle()
    return x


def _term_of(
    estimator: EstimatorLike | KLTerm,
    level: Level,
    importance: Importance,
    ratio: Ratio,
    clip: tuple[float, float] | None,
    missing: Missing,
    credit: float | None,
) -> KLTerm:
    """Return the term in the loss that the arguments of `kl_loss` describe."""
    if isinstance(estimator, KLTerm):
        return estimator
    if credit is None:
        return KLTerm(estimator, "loss", level, importance, ratio, clip, missing=missing)
    return KLTerm(estimator, "score", level, importance, ratio, clip, credit, missing)


def term_loss(
    rollout: Rollout,
    term: KLTerm,
    *,
    beta: float | torch.Tensor,
    how: Aggregate = "sum",
    length: float | None = None,
    estimate: Estimate = per_token,
) -> torch.Tensor:
    """Return `kl_loss` of a `KLTerm`, a scalar; training loops pass an ``estimate`` by the kernels."""
    flags = Flags()
    x = _weighted(rollout, term, how, length, estimate, flags)
    _check_beta(beta, rollout, flags)
    mean = x.mean()
    if term.level == "token":
        mean = reduced(x, rollout.completion_mask.bool(), how, length, flags)
    loss = flags.no_nan("the loss", beta * mean, estimate=x)
    flags.settle()
    return loss


def _check_beta(beta: float | torch.Tensor, rollout: Rollout, flags: Flags) -> None:
    """Check that the coefficient is finite: a number at once, a tensor when ``flags`` are settled."""
    dtype = rollout.logp.dtype
    if not isinstance(beta, torch.Tensor):
        check_scalar("beta", beta, dtype=dtype)
        return
    largest = torch.finfo(torch.promote_types(dtype, torch.float32)).max
    flags.add(~(beta.detach().abs() <= largest), lambda: check_scalar("beta", beta, dtype=dtype))


def _weighted(
    rollout: Rollout, term: KLTerm, how: Aggregate, length: float | None, estimate: Estimate, flags: Flags
) -> torch.Tensor:
    """Return the estimate times its ratio: [batch, seq], or [batch] at level "sequence"."""
    check_rollout(rollout)
    check_aggregate(how, length)
    if term.level == "sequence" and (how != "sum" or length is not None):
        raise ValueError(
            f"level='sequence' got how={how!r}, length={length}: expected how='sum' and no length"
        )
    x, rho = weighted_estimates(term, rollout, estimate, flags)
    return x if rho is None else flags.no_nan("the weighted estimate", x * rho, estimate=x)


@_a_term_has_every_choice
def kl_reward(
    rollout: Rollout,
    estimator: EstimatorLike | KLTerm = "k1",
    *,
    beta: float | torch.Tensor = 1.0,
    level: Level = "sequence",
    credit: float | None = 1.0,
) -> torch.Tensor:
    """Return beta times the estimate, detached: a penalty to subtract from rewards or advantages.

    Args:
        rollout: The samples.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``; or a `KLTerm`
            in the reward, which contains ``level`` and ``credit``.
        beta: KL coefficient, a number or a tensor of one.
        level: ``"sequence"`` returns the sum over each completion, [batch]; ``"token"`` the penalty of
            every token, [batch, seq], zero outside the mask.
        credit: At level ``"token"``, discount of the estimates of later tokens. 1, the default of `KLTerm`
            too, adds all of them, as advantages need it; 0 none, which is refused for an exact estimator,
            whose own cost does not depend on the token. None returns each token's own estimate, for
            trainers that sum rewards over later tokens themselves.

    Raises:
        ValueError: unknown name or choice, choices that do not go together, a term that charges nothing, a
            choice beside a `KLTerm`, a beta that is not finite, or estimates that overflow so that the
            penalty would be NaN.

    Source: tang2025pitfalls, section 4.2; wang2025choosing, section 5.2.
    """
    if isinstance(estimator, KLTerm):
        term = estimator
    else:
        term = KLTerm(estimator, "reward", level, credit=1.0 if credit is None else credit)
    if not term.charges:
        raise ValueError(f"placement={term.placement!r} charges nothing: expected 'reward' or 'both'")
    check_rollout(rollout)
    flags = Flags()
    _check_beta(beta, rollout, flags)
    x = masked(flagged_estimates(term.entry, rollout, flags).detach(), rollout.completion_mask)
    own = credit is None and term.level == "token"
    costs = x if own else penalties(term, x, rollout.completion_mask, flags)
    penalty = flags.no_nan("the penalty", beta * costs, estimate=x)
    flags.settle()
    return penalty


def policy_gradient_loss(
    rollout: Rollout, advantages: torch.Tensor, *, how: Aggregate = "sum", length: float | None = None
) -> torch.Tensor:
    """Return minus the detached advantage times log pi, aggregated (REINFORCE); a scalar to be minimized.

    Args:
        rollout: The samples.
        advantages: [batch] or [batch, seq]; detached here.
        how: See `aggregate`.
        length: See `aggregate`.

    Raises:
        ValueError: advantages of another shape or not finite (of tokens: under the mask), or products that
            overflow so that the loss would be NaN.
    """
    check_rollout(rollout)
    check_tensor("advantages", advantages)
    a = advantages.detach()
    if a.shape not in (rollout.logp.shape, rollout.logp.shape[:1]):
        raise ValueError(
            f"advantages has shape {list(a.shape)}, expected {list(rollout.logp.shape[:1])} "
            f"(one per sequence) or {list(rollout.logp.shape)} (one per token)"
        )
    inside = rollout.completion_mask.bool()
    a = masked(a, inside) if a.ndim == 2 else a[:, None]
    check_aggregate(how, length)
    flags = Flags()
    flags.add(~a.isfinite(), lambda: check_finite("advantages", a))
    loss = reduced(-a * masked(rollout.logp, inside), inside, how, length, flags)
    flags.settle()
    return loss
