"""Where a regularized reward stops: the policy that maximizes E[r] - beta D_f(policy || reference).

The maximum is at r(y) - beta f'(t) = multiplier for every y, with t = policy / reference: one number per
distribution, found so that the policy sums to one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from kl_companion.checks import check_choice, check_distribution, check_floating

Regularizer = Literal["reverse_kl", "forward_kl"]
REGULARIZERS: tuple[Regularizer, ...] = ("reverse_kl", "forward_kl")
MOST_STEPS = 200


class OptimalPolicy(NamedTuple):
    """The maximizer of E[r] - beta D_f(policy || reference).

    Attributes:
        logp: Its log-probs, [..., vocab] float64; -inf where the reference has no mass.
        multiplier: r - beta f'(t) at the optimum, the same number for every token, [...]; f'(1) = 0. With
            reverse KL it is beta log sum ref exp(r / beta), which is also the largest value of the
            objective. With forward KL, policy = beta ref / (multiplier + beta - r): the dual variable
            lambda* of tang2025pitfalls, section 3.1, is multiplier + beta, and exceeds every reward.
    """

    logp: torch.Tensor
    multiplier: torch.Tensor


@torch.no_grad()
def optimal_policy(
    rewards: torch.Tensor,
    ref_logp: torch.Tensor,
    divergence: Regularizer = "reverse_kl",
    beta: float | torch.Tensor = 1.0,
) -> OptimalPolicy:
    """The policy that maximizes E[r] - beta D(policy || reference), in float64 and without gradient.

    Args:
        rewards: [..., vocab].
        ref_logp: Normalized log-probs of the reference, [..., vocab]; -inf forbids a token.
        divergence: ``"reverse_kl"``, KL(policy || ref), in closed form; or ``"forward_kl"``,
            KL(ref || policy), by root finding.
        beta: Coefficient, a number or [...].

    Returns:
        `OptimalPolicy`; batch axes broadcast.

    Raises:
        ValueError: another divergence, shapes that do not go together, a reference that is not
            normalized, rewards that are not finite, or a beta that is not positive.

    Source: tang2025pitfalls, section 3.1.
    """
    check_choice("divergence", divergence, REGULARIZERS)
    check_floating("rewards", rewards)
    check_distribution("ref_logp", ref_logp)
    scale = torch.as_tensor(beta, dtype=torch.float64)
    if rewards.ndim == 0 or rewards.shape[-1] != ref_logp.shape[-1]:
        raise ValueError(
            f"rewards has shape {list(rewards.shape)}, expected [..., {ref_logp.shape[-1]}] like ref_logp "
            f"{list(ref_logp.shape)}"
        )
    if not rewards.isfinite().all():
        raise ValueError("rewards is not finite, expected a number for every token")
    if not (scale.isfinite() & (scale > 0)).all():
        raise ValueError(f"beta is {beta}, expected positive numbers: it is divided by")
    try:
        torch.broadcast_shapes(rewards.shape[:-1], ref_logp.shape[:-1], scale.shape)
    except RuntimeError:
        raise ValueError(
            f"rewards {list(rewards.shape)}, ref_logp {list(ref_logp.shape)} and beta {list(scale.shape)} do "
            "not go together, expected [..., vocab], [..., vocab] and [...]"
        ) from None
    r, q = rewards.double(), ref_logp.double()
    if divergence == "reverse_kl":
        scores = q + r / scale.unsqueeze(-1)
        total = scores.logsumexp(-1)
        return OptimalPolicy(scores - total.unsqueeze(-1), scale * total)
    return _forward(r, q, scale)


def _forward(r: torch.Tensor, q: torch.Tensor, beta: torch.Tensor) -> OptimalPolicy:
    """policy = beta ref / (gap + top - r), with top the largest reward that the reference can reach.

    The unknown is gap = lambda* - top and not lambda*, so that a gap far below the rounding of the
    rewards is still found.
    """
    r, q = torch.broadcast_tensors(r, q)
    top = r.masked_fill(q.isneginf(), -torch.inf).max(-1, keepdim=True).values
    below = (top - r).clamp(min=0.0)
    beta = beta.expand(torch.broadcast_shapes(beta.shape, r.shape[:-1])).unsqueeze(-1)
    share = q.exp()
    # h(gap) = 1 / sum ref / (gap + below) is increasing and concave, so that Newton's steps for h = beta
    # from the left never pass the root; no probability exceeds 1, hence where to start
    gap = (beta * share - below).max(-1, keepdim=True).values
    for _ in range(MOST_STEPS):
        parts = share / (gap + below)
        h = 1 / parts.sum(-1, keepdim=True)
        slope = h**2 * (parts / (gap + below)).sum(-1, keepdim=True)
        following = torch.minimum(torch.maximum(gap, gap + (beta - h) / slope), beta)
        if torch.allclose(following, gap, rtol=1e-15, atol=0.0):
            break
        gap = following
    else:
        raise ValueError("the multiplier was not found: rewards and beta are out of the range of float64")
    logp = (q - (gap + below).log()).log_softmax(-1)
    return OptimalPolicy(logp, (top + gap - beta).squeeze(-1))
