"""From per-token values to one number: aggregation over tokens, credit over time."""

from __future__ import annotations

import math
from typing import Literal

import torch

from kl_companion import checks
from kl_companion.rollout.batch import masked

Aggregate = Literal["sum", "sequence_mean", "token_mean", "constant"]
AGGREGATES: tuple[Aggregate, ...] = ("sum", "sequence_mean", "token_mean", "constant")


def aggregate(
    x: torch.Tensor, completion_mask: torch.Tensor, how: Aggregate = "sum", *, length: float | None = None
) -> torch.Tensor:
    """One number from per-token values.

    Args:
        x: [batch, seq].
        completion_mask: [batch, seq].
        how: ``"sum"``: sum over tokens, mean over sequences; the only one whose value is the
            sequence KL. ``"sequence_mean"``: mean over sequences of the mean over tokens (TRL's
            ``grpo``). ``"token_mean"``: sum over all tokens of the batch divided by their number
            (``dapo``). ``"constant"``: sum divided by ``length``, mean over sequences (``dr_grpo``).
        length: Tokens to divide by, for ``"constant"`` only.

    Raises:
        ValueError: unknown ``how``, shapes differ, ``length`` missing, superfluous or not positive, or
            values that leave NaN: NaN itself, or infinities of both signs.
    """
    check_aggregate(how, length)
    checks.check_mask(completion_mask)
    return reduced(x, completion_mask.bool(), how, length)


def reduced(x: torch.Tensor, inside: torch.Tensor, how: Aggregate, length: float | None) -> torch.Tensor:
    """`aggregate` of a mask and a ``how`` that were checked before; the mask is one of truth values."""
    held = masked(x, inside)
    if how == "token_mean":
        return checks.refuse_nan("the aggregate", held.sum() / inside.to(x.dtype).sum(), x=held)
    each = _each(held, inside, how, length)
    mean = each.mean()
    if math.isnan(mean.detach()):
        checks.refuse_nan("the aggregate", each, x=held)
    return checks.refuse_nan("the aggregate", mean, **{"the sum of a sequence": each})


def _each(held: torch.Tensor, inside: torch.Tensor, how: Aggregate, length: float | None) -> torch.Tensor:
    """What each sequence contributes, [batch], of values that are zero outside the mask."""
    total = held.sum(-1)
    if how == "sequence_mean":
        return total / inside.to(held.dtype).sum(-1)
    return total if length is None else total / length


def per_sequence(
    x: torch.Tensor, completion_mask: torch.Tensor, how: Aggregate = "sum", *, length: float | None = None
) -> torch.Tensor:
    """What each sequence contributes to the mean that `aggregate` takes, [batch].

    Arguments and errors as there; ``"token_mean"`` couples the sequences of a batch and is refused.
    """
    check_aggregate(how, length)
    if how == "token_mean":
        raise ValueError("how is 'token_mean', expected one that does not couple the sequences of a batch")
    checks.check_mask(completion_mask)
    held = masked(x, completion_mask)
    return checks.refuse_nan("the aggregate", _each(held, completion_mask.bool(), how, length), x=held)


def check_aggregate(how: Aggregate, length: float | None) -> None:
    """ValueError for an unknown ``how``, or a ``length`` that is missing, superfluous or not positive."""
    checks.check_choice("how", how, AGGREGATES)
    if (how == "constant") != (length is not None):
        raise ValueError(f"how={how!r} got length={length}: a length is wanted for 'constant' and only there")
    if length is not None and not 0 < length < math.inf:
        raise ValueError(f"length is {length}, expected a positive number of tokens")


def credit(x: torch.Tensor, completion_mask: torch.Tensor, *, discount: float = 1.0) -> torch.Tensor:
    """Discounted sum of ``x`` from each token to the end, c_t = sum_{s >= t} discount^(s-t) x_s.

    Discount 0 is the token's own value, 1 the whole future: with a detached log-ratio as ``x`` this
    runs from the token-level field to the sequence gradient (tang2025pitfalls, section 4.2).

    Raises:
        ValueError: shapes differ, the discount is outside [0, 1], or the sums leave NaN.
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount}, expected a number from 0 to 1")
    inside = masked(x, completion_mask)
    out, ahead = [], torch.zeros_like(inside[:, 0])
    for t in range(inside.shape[1] - 1, -1, -1):
        ahead = inside[:, t] + discount * ahead
        out.append(ahead)
    return checks.refuse_nan("the credit", torch.stack(out[::-1], dim=1), x=inside)
