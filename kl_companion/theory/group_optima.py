"""Where updates come to rest that normalize rewards in a group and have K3 in the loss.

The advantage of an answer is its reward minus the mean of its group over the group's standard deviation (that
with 1/G), and 0 where all rewards agree. On groups of the policy itself, the slopes of the objective are
equal where pi (1 - (P - E_pi P) / beta) = pi_ref, P the expected advantage of an answer. Summed over the
right answers, with rewards 0 and 1, this is beta (p - q) = E[deviation of a group]: p the success of the
policy, q that of the reference. The right side is concave in p, and 0 at both ends, so that exactly one p
between q and 1 solves it.

This is for K3 of whole answers. Trainers add up K3 of tokens, where the same holds after every prefix, with P
the expected advantage of the answers that begin with it (`success_at_rest` with a length).
"""

from __future__ import annotations

import math

import torch

from kl_companion.checks import check_number, check_whole
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
    reference: float | torch.Tensor, beta: float | torch.Tensor, size: int | None, length: int = 1
) -> torch.Tensor:
    """Return how often a policy is right at which GRPO's updates come to rest, rewards 0 and 1.

    On-policy, without the clip, with K3 of tokens in the loss. An answer is right if each of its ``length``
    tokens is; a wrong token leaves nothing to win, and the reference gets every token right with the same
    probability. With one token, K3 is that of the whole answer: right answers keep the proportions that they
    have under the reference, and so do wrong ones. Several tokens add up to more failures, about
    beta length (1 - reference) / sqrt(size - 1) of them for a small beta.

    A trainer that divides by the deviation with G - 1 comes to rest where this one does with
    beta sqrt(G / (G - 1)).

    Args:
        reference: How often the reference gets a token right, in (0, 1), a number or [...].
        beta: Coefficient of K3, a number or [...].
        size: Answers of a group, at least 2, or None for the limit of large groups.
        length: Tokens of an answer, each a decision between right and wrong, at least 1.

    Returns:
        Probability of a right answer, [...] float64.

    Raises:
        ValueError: a rate outside (0, 1), a beta that is not positive, a group of fewer than two, or a length
            below 1.

    Source: vojnovic2025alignment, eq (11), for one token; eqs (14) and (15) are its closed forms for groups
    of two and for large ones. For several tokens: this book.

    Example:
        >>> [round(1 - success_at_rest(0.5, 0.04, 2, length).item(), 2) for length in (1, 20)]
        [0.02, 0.39]
    """
    if not isinstance(beta, torch.Tensor):
        check_number("beta", beta)
    check_whole("length", length, 1)
    if size is not None:
        _check_size(size, 2)
    q, b = torch.broadcast_tensors(
        torch.as_tensor(reference, dtype=torch.float64), torch.as_tensor(beta, dtype=torch.float64)
    )
    if not ((q > 0) & (q < 1)).all():
        raise ValueError(f"reference is {reference}, expected rates between 0 and 1, both excluded")
    if not (b.isfinite() & (b > 0)).all():
        raise ValueError(f"beta is {beta}, expected positive numbers: without a penalty nothing rests")
    if length == 1:
        return increasing_root(lambda p: b * (p - q) - mean_group_deviation(p, size), q, torch.ones_like(q))
    below_one = torch.full_like(q, 1 - torch.finfo(torch.float64).eps)  # at 1 itself no group has a deviation
    return increasing_root(lambda p: p - _next_success(p, q, b, size, length), q**length, below_one)


def _next_success(
    success: torch.Tensor, q: torch.Tensor, beta: torch.Tensor, size: int | None, length: int
) -> torch.Tensor:
    """Return how often all tokens are right at rest if the advantages are those of ``success``, [...].

    From the last token on, the equation of one token is solved with the difference of the expected advantages
    after a right and after a wrong token: that of the whole answers times the chance of all that follows.
    """
    spread = success * (1 - success)
    limit = math.inf if size is None else math.sqrt(size - 1)  # where a success has underflowed
    gap = torch.where(spread > 0, mean_group_deviation(success, size) / spread, limit)
    later = torch.ones_like(q)
    for _ in range(length):
        pull = gap * later
        lead = pull - beta
        root = (lead**2 + 4 * beta * q * pull).sqrt()
        token = torch.where(lead > 0, (lead + root) / (2 * pull), 2 * beta * q / (root - lead))
        later = later * torch.where(pull.isinf(), 1.0, token)
    return later


def _check_size(size: int, least: int) -> None:
    if size < least:
        raise ValueError(f"size is {size}, expected at least {least}, or None for large groups")
