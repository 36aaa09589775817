"""Exact moments of one next-token estimate, at any vocabulary: every token is summed over, none is drawn.

From normalized log-probs, with the expected gradient as a whole vocabulary; see `logit_moments` for raw
logits and numbers only.
"""

from __future__ import annotations

import torch

from kl_companion.checks import check_choice, check_clip, check_distribution, check_shape, check_tensor
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.tabular.draws import SINGLE_PLACEMENTS, Draws, Moments, SinglePlacement
from kl_companion.tabular.rows import draws_of_rows, normalized


def check_options(placement: SinglePlacement, weighted: bool, clip: tuple[float, float] | None) -> None:
    """Raise ValueError for an unknown placement, or a clip out of order or without a weight."""
    check_choice("placement", placement, SINGLE_PLACEMENTS)
    if clip is not None:
        check_clip(clip)
    if clip is not None and not weighted:
        raise ValueError(f"clip={clip} got weighted=False, expected a weight to clip")


def token_statistics(
    estimator: str | Estimator,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    *,
    behavior_logp_all: torch.Tensor | None = None,
    placement: SinglePlacement = "loss",
    weighted: bool = True,
    clip: tuple[float, float] | None = None,
    target: str | Divergence | None = None,
) -> Draws:
    """Everything that the moments of n draws of a token are made of, exact; see `token_moments`.

    Returns:
        `Draws` with leading axes [...] and gradients [..., 1, vocab] in the logits of each row. Its
        ``at(n)`` costs next to nothing for any number of sizes.
    """
    entry = get_estimator(estimator)
    check_tensor("logp_all", logp_all)
    check_shape("ref_logp_all", ref_logp_all, logp_all.shape, "logp_all [..., vocab]")
    logp, ref_logp = logp_all.detach(), ref_logp_all.detach()
    mu = logp if behavior_logp_all is None else behavior_logp_all.detach()
    check_shape("behavior_logp_all", mu, logp.shape, "logp_all [..., vocab]")
    for name, x in (("logp_all", logp), ("ref_logp_all", ref_logp), ("behavior_logp_all", mu)):
        check_distribution(name, x)
    check_options(placement, weighted, clip)
    with torch.no_grad():
        policy = normalized(logp, logp.dtype)
        return draws_of_rows(
            entry,
            policy,
            normalized(ref_logp, ref_logp.dtype),
            policy if behavior_logp_all is None else normalized(mu, mu.dtype),
            target=get_divergence(entry.target if target is None else target),
            placement=placement,
            weighted=weighted,
            clip=clip,
        ).checked()


def token_moments(
    estimator: str | Estimator,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    n: int = 1,
    *,
    behavior_logp_all: torch.Tensor | None = None,
    placement: SinglePlacement = "loss",
    weighted: bool = True,
    clip: tuple[float, float] | None = None,
    target: str | Divergence | None = None,
) -> Moments:
    """Bias and variance of value and gradient of an estimate of next tokens, exact, row by row.

    Args:
        estimator: Any registered estimator or `Estimator`: sampled, exact or top-k.
        logp_all: Normalized log-probs of the policy, [..., vocab]; any vocabulary.
        ref_logp_all: Of the reference, the same shape.
        n: Independent tokens averaged, drawn at the same row.
        behavior_logp_all: Of the policy that samples, the same shape; None means the policy itself.
        placement: ``"loss"`` differentiates the estimate; ``"reward"`` takes the whole estimate, detached,
            as the cost of the token and multiplies its score. An exact divergence is a constant there,
            and pulls on nothing.
        weighted: Multiply what is sampled by pi/mu of the token (off-policy only). What is summed
            exactly, a head or a whole row, is never weighted; the score of a reward always is.
        clip: (lowest, highest) pi/mu.
        target: The divergence that bias is measured against; the estimator's own target by default.

    Returns:
        `Moments` of tensors [...], with ``gradient`` [..., 1, vocab], by the logits of each row.

    Raises:
        ValueError: unknown name or placement, shapes that differ, rows that are not normalized, a clip out
            of order or without a weight, n below 1, or an infinite divergence or estimate.

    Source: emapg2026, appendix G.2 (which estimates these by simulation).
    """
    return token_statistics(
        estimator,
        logp_all,
        ref_logp_all,
        behavior_logp_all=behavior_logp_all,
        placement=placement,
        weighted=weighted,
        clip=clip,
        target=target,
    ).at(n)
