"""Where updates come to rest that normalize rewards in a group and have K3 of whole answers in the loss.

The advantage of an answer is its reward minus the mean of its group over the group's standard deviation (that
with 1/G), and 0 where all rewards agree. On groups of the policy itself, the slopes of the objective are
equal where pi (1 - (P - E_pi P) / beta) = pi_ref, P the expected advantage of an answer. Summed over the
right answers, with rewards 0 and 1, this is beta (p - q) = E[deviation of a group]: p the success of the
policy, q that of the reference. The right side is concave in p, and 0 at both ends, so that exactly one p
between q and 1 solves it.
"""

from __future__ import annotations

import math

import torch

from kl_companion.checks import check_number
from kl_companion.theory.optima import increasing_root


def mean_group_deviation(success: float | torch.Tensor, size: int | None) -> torch.Tensor:
    """The expected standard deviation of the rewards in a group, where rewards are 0 and 1, [...] float64.

    Args:
        success: How often an answer is right, a number or [...].
        size: Answers of a group, at least 1, or None for the limit of large groups.

    Source: vojnovic2025alignment, eqs (12) and (13), for rewards 0 and 1.
    """
    p = torch.as_tensor(success, dtype=torch.float64)
    if size is None:
        return (p * (1 - p)).sqrt()
    _check_size(size, 1)
    total = torch.zeros_like(p)
    for right in range(1, size):
        spread = math.sqrt(right * (size - right)) / size
        total = total + math.comb(size, right) * spread * p**right * (1 - p) ** (size - right)
    return total


def success_at_rest(
    reference: float | torch.Tensor, beta: float | torch.Tensor, size: int | None
) -> torch.Tensor:
    """How often a policy is right at which GRPO's updates come to rest, rewards 0 and 1, [...] float64.

    On-policy, without the clip, and for a policy that gives every answer of the reference. Right answers
    keep the proportions that they have under the reference, and so do wrong ones. A trainer that divides by
    the deviation with G - 1 comes to rest where this one does with beta sqrt(G / (G - 1)).

    Args:
        reference: How often the reference is right, in (0, 1), a number or [...].
        beta: Coefficient of K3, a number or [...].
        size: Answers of a group, at least 2, or None for the limit of large groups.

    Raises:
        ValueError: a rate outside (0, 1), a beta that is not positive, or a group of fewer than two.

    Source: vojnovic2025alignment, eq (11); eqs (14) and (15) are its closed forms for groups of two and
    for large ones.
    """
    if not isinstance(beta, torch.Tensor):
        check_number("beta", beta)
    if size is not None:
        _check_size(size, 2)
    q, b = torch.broadcast_tensors(
        torch.as_tensor(reference, dtype=torch.float64), torch.as_tensor(beta, dtype=torch.float64)
    )
    if not ((q > 0) & (q < 1)).all():
        raise ValueError(f"reference is {reference}, expected rates between 0 and 1, both excluded")
    if not (b.isfinite() & (b > 0)).all():
        raise ValueError(f"beta is {beta}, expected positive numbers: without a penalty nothing rests")
    return increasing_root(lambda p: b * (p - q) - mean_group_deviation(p, size), q, torch.ones_like(q))


def _check_size(size: int, least: int) -> None:
    if size < least:
        raise ValueError(f"size is {size}, expected at least {least}, or None for large groups")
