"""What trainers make of rewards before a loss sees them, as functions of whole groups.

A function here takes the returns of many groups, [groups, n], and gives their advantages, [groups, n]. A
group is a prompt's answers, or all answers of a batch where the statistics are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from kl_companion.checks import check_choice, check_finite, check_scalar, check_shape
from kl_companion.tabular.expectations import multisets

Normalize = Callable[[torch.Tensor], torch.Tensor]
Advantage = Literal["none", "mean", "leave_one_out", "group_std", "batch_std", "whitened", "others_std"]


def _divided(x: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """x / spread, and 0 where the spread is 0: there x is 0 too."""
    return x / spread.where(spread > 0, 1.0) * (spread > 0)


def _agree(x: torch.Tensor) -> torch.Tensor:
    """Where all are equal: their mean may be off by a rounding, which a small eps would blow up."""
    return x.amax(-1, keepdim=True) == x.amin(-1, keepdim=True)


def _mean(x: torch.Tensor, eps: float, unbiased: bool) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


def _leave_one_out(x: torch.Tensor, eps: float, unbiased: bool) -> torch.Tensor:
    return _mean(x, eps, unbiased) * x.shape[-1] / (x.shape[-1] - 1)


def standardized(x: torch.Tensor, eps: float = 1e-4, unbiased: bool = True) -> torch.Tensor:
    """(x - mean) / (standard deviation + eps), [..., n]; 0 where all agree.

    Args:
        x: [..., n].
        eps: Added to the standard deviation.
        unbiased: Whether the variance has n - 1 in its denominator.
    """
    spread = x.std(-1, keepdim=True, correction=int(unbiased)) + eps
    return _divided(_mean(x, eps, unbiased), spread.masked_fill(_agree(x), 0.0))


def others_standardized(x: torch.Tensor, eps: float = 1e-6, unbiased: bool = True) -> torch.Tensor:
    """(x - mean of the others) / (standard deviation of the others + eps); not divided where that is 0."""
    n = x.shape[-1]
    if n > _MANY:
        return _others_by_sums(x, eps, unbiased)
    rest = torch.stack([torch.cat([x[..., :i], x[..., i + 1 :]], -1) for i in range(n)], -2)
    apart = x - rest.mean(-1)
    if n == 2:  # one other has no deviation
        return apart
    spread = rest.std(-1, correction=int(unbiased))
    return torch.where(rest.amax(-1) > rest.amin(-1), apart / (spread + eps), apart)


def _others_by_sums(x: torch.Tensor, eps: float, unbiased: bool) -> torch.Tensor:
    """The same from the sums of all, which for few answers loses digits: the others may be nearly equal."""
    n = x.shape[-1]
    c = _mean(x, eps, unbiased)
    squares = (c * c).sum(-1, keepdim=True) - c * c * n / (n - 1)
    spread = (squares.clamp(min=0.0) / (n - 1 - int(unbiased))).sqrt()
    ordered = x.sort(-1).values
    least = torch.where(x == ordered[..., :1], ordered[..., 1:2], ordered[..., :1])
    most = torch.where(x == ordered[..., -1:], ordered[..., -2:-1], ordered[..., -1:])
    apart = c * n / (n - 1)
    return torch.where(most > least, apart / (spread + eps), apart)


def whitened(
    x: torch.Tensor,
    eps: float = 1e-8,
    unbiased: bool = True,
    floor: Literal["added", "least"] = "added",
    keep_mean: bool = False,
) -> torch.Tensor:
    """(x - mean) / sqrt(variance), where eps is added to the variance or is the least that it can be.

    Where all agree x - mean is 0, with an eps of 0 too.

    Args:
        x: [..., n].
        eps: In units of the variance.
        unbiased: Whether the variance has n - 1 in its denominator.
        floor: What becomes of eps.
        keep_mean: Add the mean again, undivided.
    """
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=int(unbiased))
    variance = variance + eps if floor == "added" else variance.clamp(min=eps)
    apart = torch.where(_agree(x), 0.0, (x - mean) * variance.rsqrt())
    return apart + mean if keep_mean else apart


_WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "none": lambda x, eps, unbiased: x,
    "mean": _mean,
    "leave_one_out": _leave_one_out,
    "group_std": standardized,
    "batch_std": standardized,
    "whitened": whitened,
    "others_std": others_standardized,
}
ADVANTAGES = tuple(_WAYS)
OF_TOKENS = ("none", "whitened")  # every token has its own
ALONE = ("none",)  # a group of one answer is enough
_MANY = 64  # answers whose others are not written out for each
_SUM = 1e-6  # how far the sum of probabilities may be from 1


def normalizer(how: Advantage, *, eps: float = 1e-4, unbiased: bool = True) -> Normalize:
    """The function of returns [..., n] that gives their advantages.

    Args:
        how: ``"none"``: as they are. ``"mean"``: minus the mean of the group. ``"leave_one_out"``: minus the
            mean of the others. ``"group_std"``: minus the mean, divided by the standard deviation plus eps.
            ``"batch_std"``: the same of a whole batch. ``"whitened"``: the same of all tokens of a batch, and
            eps is added to the variance.
            ``"others_std"``: minus the mean of the others, divided by their standard deviation plus eps; not
            divided where the others agree.
        eps: See there.
        unbiased: Whether the variance has n - 1 in its denominator.

    Raises:
        ValueError: an unknown name or a negative eps; of the function, where it compares: fewer than two
            returns in a group.
    """
    check_choice("advantage", how, ADVANTAGES)
    check_scalar("eps", eps, least=0.0)
    return partial(_compared, how, eps=eps, unbiased=unbiased)


def _compared(how: Advantage, x: torch.Tensor, eps: float, unbiased: bool) -> torch.Tensor:
    if how not in ALONE and x.shape[-1] < 2:
        what = "token" if how in OF_TOKENS else "answer"
        raise ValueError(
            f"advantage={how!r} got a group of {x.shape[-1]} {what}, expected at least two: nothing is "
            "left to compare it with"
        )
    return _WAYS[how](x, eps, unbiased)


def of_population(
    how: Advantage, returns: torch.Tensor, probability: torch.Tensor, *, eps: float = 1e-4
) -> torch.Tensor:
    """Advantages in the limit of large groups, [count]: mean and variance are those of the probabilities.

    Args:
        how: As in `normalizer`; a convention of the denominator makes no difference here.
        returns: Of every answer, [count].
        probability: Of every answer, [count]; all above 0.
        eps: As in `normalizer`.

    Raises:
        ValueError: as `expected_advantages`.
    """
    check_choice("advantage", how, ADVANTAGES)
    check_scalar("eps", eps, least=0.0)
    _check_answers(returns, probability)
    if how == "none":
        return returns
    apart = returns - (probability * returns).sum()
    if how in ("mean", "leave_one_out") or returns.amax() == returns.amin():
        return apart
    variance = (probability * apart**2).sum()
    return apart / ((variance + eps).sqrt() if how == "whitened" else variance.sqrt() + eps)


def expected_advantages(
    how: Advantage,
    returns: torch.Tensor,
    probability: torch.Tensor,
    group: int | None,
    *,
    eps: float = 1e-4,
    unbiased: bool = True,
) -> torch.Tensor:
    """E[advantage of an answer | the answer], [count]: over all groups that it can stand in, exactly.

    Args:
        how: As in `normalizer`; ``"whitened"`` takes every answer for one token.
        returns: Of every answer, [count].
        probability: Of every answer, [count]; all above 0.
        group: Answers per group; None for the limit of large groups.
        eps: As in `normalizer`.
        unbiased: As in `normalizer`.

    Raises:
        ValueError: an unknown name, a negative eps, a group too small to compare, more than 1e5 multisets,
            shapes that differ, or probabilities that are not positive or do not sum to 1.
    """
    if group is None:
        return of_population(how, returns, probability, eps=eps)
    _check_answers(returns, probability)
    drawn, chance = multisets(probability, group)
    found = normalizer(how, eps=eps, unbiased=unbiased)(returns[drawn])
    each = chance.unsqueeze(-1) * found / group
    return torch.zeros_like(returns).index_add(0, drawn.flatten(), each.flatten()) / probability


def _check_answers(returns: torch.Tensor, probability: torch.Tensor) -> None:
    check_shape("returns", returns, probability.shape, "probability [count]")
    check_finite("returns", returns)
    total = probability.sum().item()
    if not (probability.ndim == 1 and probability.amin() > 0 and abs(total - 1) < _SUM):
        raise ValueError(
            f"probability has shape {list(probability.shape)}, its least is {probability.amin():.3g} and its "
            f"sum {total:.9g}, expected [count] positive numbers that sum to 1"
        )
