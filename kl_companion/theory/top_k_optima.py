"""Policies to which the published top-k forms converge: optima of a KL plus a multiple of the head's mass.

`kl_companion.theory.top_k_split` derives that multiple.
"""

from __future__ import annotations

import math

import torch

from kl_companion.checks import check_choice, check_distribution, check_scalar
from kl_companion.estimators.token_ids import checked_head


def mass_penalty_optimum(
    ref_logp: torch.Tensor, indices: torch.Tensor, coefficient: float, divergence: str = "reverse_kl"
) -> torch.Tensor:
    """Where D(policy || reference) + coefficient * P(S) is least, for a fixed set S: log-probs [vocab].

    With coefficient 1 (reverse KL) and -1 (forward KL) this is where the published top-k forms take
    the policy: P(S) = Q(S)/(Q(S) + e (1 - Q(S))), and P(S) = sqrt(Q(S)). Ratios inside S and outside
    it stay those of the reference.

    Args:
        ref_logp: Normalized log-probs of the reference, [vocab], one row.
        indices: The set S, [k] int64.
        coefficient: Weight of P(S).
        divergence: ``"reverse_kl"`` or ``"forward_kl"``.

    Raises:
        ValueError: another divergence, more than one row, rows that are not normalized, indices that are no
            tokens of the vocabulary, each once, or a coefficient that is not finite or beside which the dtype
            rounds the reference away.
    """
    check_choice("divergence", divergence, ("reverse_kl", "forward_kl"))
    _check_row(ref_logp)
    checked_head(indices, ref_logp.shape[:-1], len(ref_logp))
    check_scalar("coefficient", coefficient)
    eps = torch.finfo(ref_logp.dtype).eps
    if abs(coefficient) * eps >= 1:
        raise ValueError(
            f"coefficient is {coefficient}, expected less than {1 / eps:.3g} in size: beyond that nothing is "
            f"left of the reference in {ref_logp.dtype}"
        )
    inside = torch.zeros_like(ref_logp).index_fill(-1, indices, 1.0)
    if divergence == "reverse_kl":
        return (ref_logp - coefficient * inside).log_softmax(-1)
    mass = (ref_logp.exp() * inside).sum().item()
    if mass >= 1.0 or mass <= 0.0:  # all or nothing: P(S) is a constant
        return ref_logp.log_softmax(-1)
    # stationary points are Q/(lambda + coefficient 1_S); the larger root is the one inside the simplex
    half = (1 - coefficient) / 2
    multiplier = half + math.sqrt(half**2 + coefficient * (1 - mass))
    return (ref_logp - (multiplier + coefficient * inside).log()).log_softmax(-1)


def top_k_mass_optimum(ref_logp: torch.Tensor, k: int) -> torch.Tensor:
    """Where KL(policy || reference) + (the sum of the policy's k largest probabilities) is least: [vocab].

    This is where the published top-k reverse KL goes when the head is taken anew from the policy at
    each step. The sum of the k largest probabilities is a convex function with the indicator of the
    head as its subgradient, so the minimum is unique. Its entries are Q e^(-a)/Z with a in [0, 1] and
    the a summing to k: what is well inside the head is lowered by e, what is well outside is left, and
    what lies between ends level.

    Args:
        ref_logp: Normalized log-probs of the reference, [vocab], one row.
        k: Size of the head, 0 to vocab.

    Raises:
        ValueError: k out of range, more than one row, or rows that are not normalized.
    """
    _check_row(ref_logp)
    if not 0 <= k <= len(ref_logp):
        raise ValueError(f"k is {k}, expected 0 to {len(ref_logp)}")
    reached = ref_logp[ref_logp.isfinite()]
    if k == 0 or k >= len(reached):  # nothing or everything: the penalty is a constant
        return ref_logp.log_softmax(-1)
    low, high = reached.min().item() - 1.0, reached.max().item()
    for _ in range(200):  # the sum of the a falls as the level rises
        level = (low + high) / 2
        if (ref_logp - level).clamp(0.0, 1.0).sum() > k:
            low = level
        else:
            high = level
    return (ref_logp - (ref_logp - (low + high) / 2).clamp(0.0, 1.0)).log_softmax(-1)


def _check_row(ref_logp: torch.Tensor) -> None:
    if ref_logp.ndim != 1:
        raise ValueError(f"ref_logp has shape {list(ref_logp.shape)}, expected one row [vocab]")
    check_distribution("ref_logp", ref_logp)
