"""From per-token values to one number: aggregation over tokens, credit over time."""

from __future__ import annotations

import math
from typing import Literal

import torch

from kl_companion import checks
from kl_companion.rollout.flags import Flags
from kl_companion.rollout.masks import masked

Aggregate = Literal["sum", "sequence_mean", "token_mean", "constant"]
AGGREGATES: tuple[Aggregate, ...] = ("sum", "sequence_mean", "token_mean", "constant")
_BLOCK = 128  # tokens


def aggregate(
    x: torch.Tensor, completion_mask: torch.Tensor, how: Aggregate = "sum", *, length: float | None = None
) -> torch.Tensor:
    """Return one number from per-token values.

    Args:
        x: [batch, seq].
        completion_mask: [batch, seq].
        how: ``"sum"``: sum over tokens, mean over sequences; the only one whose value is the
            sequence KL. ``"sequence_mean"``: mean over sequences of the mean over tokens (TRL's
            ``grpo``). ``"token_mean"``: sum over all tokens of the batch divided by their number
            (``dapo``). ``"constant"``: sum divided by ``length``, mean over sequences (``dr_grpo``).
        length: Tokens to divide by, for ``"constant"`` only.

    Raises:
        ValueError: unknown ``how``, shapes differ, no sequence, ``length`` missing, superfluous or not
            positive, or values that leave NaN: NaN itself, or infinities of both signs.
    """
    check_aggregate(how, length)
    flags = Flags()
    inside = mask_of(completion_mask, flags)
    result = reduced(x, inside, how, length, flags)
    flags.settle()
    return result


def mask_of(completion_mask: torch.Tensor, flags: Flags) -> torch.Tensor:
    """Return the mask [batch, seq] as bool, whose values are checked when ``flags`` are settled."""
    checks.check_mask_shape(completion_mask)
    inside = completion_mask.bool()
    wrong = (inside != completion_mask).any() | ~inside.any(-1).all()
    flags.add(wrong, lambda: checks.check_mask(completion_mask))
    return inside


def reduced(
    x: torch.Tensor, inside: torch.Tensor, how: Aggregate, length: float | None, flags: Flags
) -> torch.Tensor:
    """Return `aggregate` of a bool mask and a ``how`` that were checked before."""
    if inside.shape[0] == 0:
        raise ValueError(f"completion_mask has shape {list(inside.shape)}, expected at least one sequence")
    values = masked(x, inside)
    if how == "token_mean":
        mean = values.sum() / inside.to(x.dtype).sum()
        return flags.no_nan("the aggregate", mean, x=values)
    each = flags.no_nan("the aggregate", _each(values, inside, how, length), x=values)
    return flags.no_nan("the aggregate", each.mean(), **{"the sum of a sequence": each})


def _each(values: torch.Tensor, inside: torch.Tensor, how: Aggregate, length: float | None) -> torch.Tensor:
    """Return the contribution of each sequence, [batch], from values that are zero outside the mask."""
    total = values.sum(-1)
    if how == "sequence_mean":
        return total / inside.to(values.dtype).sum(-1)
    return total if length is None else total / length


def per_sequence(
    x: torch.Tensor,
    inside: torch.Tensor,
    how: Aggregate,
    length: float | None,
    flags: Flags,
) -> torch.Tensor:
    """Return the contribution of each sequence to the mean that `aggregate` takes, [batch].

    Arguments and errors are those of `reduced`; ``"token_mean"`` couples the sequences of a batch and is
    refused.
    """
    if how == "token_mean":
        raise ValueError("how is 'token_mean', expected one that does not couple the sequences of a batch")
    values = masked(x, inside)
    return flags.no_nan("the aggregate", _each(values, inside, how, length), x=values)


def check_aggregate(how: Aggregate, length: float | None) -> None:
    """ValueError for an unknown ``how``, or a ``length`` that is missing, superfluous or not positive."""
    checks.check_choice("how", how, AGGREGATES)
    if (how == "constant") != (length is not None):
        raise ValueError(f"how={how!r} got length={length}: a length is wanted for 'constant' and only there")
    if length is not None:
        checks.check_number("length", length, infinite=True)
    if length is not None and not 0 < length < math.inf:
        raise ValueError(f"length is {length}, expected a positive number of tokens")


def credit(x: torch.Tensor, completion_mask: torch.Tensor, *, discount: float = 1.0) -> torch.Tensor:
    """Return the discounted sum of ``x`` from each token to the end, c_t = sum_{s >= t} discount^(s-t) x_s.

    Discount 0 is the token's own value, 1 the whole future: with a detached log-ratio as ``x`` this
    runs from the token-level field to the sequence gradient (tang2025pitfalls, section 4.2).

    Args:
        x: [batch, seq]; values outside the mask count as 0.
        completion_mask: [batch, seq].
        discount: Factor per token, 0 to 1.

    Raises:
        ValueError: shapes differ, the discount is outside [0, 1], or the sums leave NaN.
    """
    flags = Flags()
    result = credited(x, completion_mask, discount, flags)
    flags.settle()
    return result


def credited(x: torch.Tensor, completion_mask: torch.Tensor, discount: float, flags: Flags) -> torch.Tensor:
    """Return `credit`, whose values are checked when ``flags`` are settled."""
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount}, expected a number from 0 to 1")
    values = masked(x, completion_mask)
    if discount == 0:
        return flags.no_nan("the credit", values, x=values)
    if discount == 1:
        return flags.no_nan("the credit", _to_the_end(values), x=values)
    # A product with a matrix would turn an infinite value into NaN (infinity times 0) at other tokens.
    infinite = ~values.isfinite()
    sums = _discounted(values.masked_fill(infinite, 0.0), discount) + _to_the_end(values.where(infinite, 0.0))
    return flags.no_nan("the credit", sums, x=values)


def _to_the_end(x: torch.Tensor) -> torch.Tensor:
    """Return the sum from each token to the last, [batch, seq]."""
    return x.flip(-1).cumsum(-1).flip(-1)


def _discounted(x: torch.Tensor, discount: float) -> torch.Tensor:
    """Return the discounted sums of finite values, [batch, seq], in products over blocks of tokens.

    Within a block of `_BLOCK` tokens the sums are one product with the powers of the discount, and so are
    the sums over later blocks. Every power is the exponential of its own logarithm, so that no error grows
    with the length; half precision is widened.
    """
    log = math.log(discount)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    blocks = torch.nn.functional.pad(wide, (0, -x.shape[1] % _BLOCK)).unflatten(1, (-1, _BLOCK))
    step = torch.arange(_BLOCK, dtype=wide.dtype, device=x.device)
    within = (log * (step.unsqueeze(1) - step).clamp(min=0)).exp().tril()
    own = blocks @ within
    later = torch.arange(blocks.shape[1], dtype=wide.dtype, device=x.device)
    between = (log * _BLOCK * (later.unsqueeze(1) - later - 1).clamp(min=0)).exp().tril(-1)
    ahead = own[..., 0] @ between  # of each block, the sum from the first token of the next one
    sums = own + ahead.unsqueeze(-1) * (log * (_BLOCK - step)).exp()
    return sums.flatten(1)[:, : x.shape[1]].to(x.dtype)
