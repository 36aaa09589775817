"""What trainers make of rewards before a loss sees them, as functions of whole groups.

A function here takes the returns of many groups, [groups, n], and gives their advantages, [groups, n]. A
group is a prompt's answers, or all answers of a batch where the statistics are those of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch

from kl_companion.checks import check_choice, check_scalar

Normalize = Callable[[torch.Tensor], torch.Tensor]
Advantage = Literal["none", "mean", "leave_one_out", "group_std", "batch_std", "whitened", "others_std"]


class Way(NamedTuple):
    """An estimator of advantages: a return minus a baseline, divided by a spread.

    Attributes:
        baseline: ``"all"`` for the mean of the group, ``"others"`` for that of the others, "" for none.
        spread: ``"deviation"`` plus eps, root of the ``"variance"`` plus eps, deviation of the ``"others"``
            plus eps, or "" for 1.
    """

    baseline: str
    spread: str


WAYS: dict[str, Way] = {
    "none": Way("", ""),
    "mean": Way("all", ""),
    "leave_one_out": Way("others", ""),
    "group_std": Way("all", "deviation"),
    "batch_std": Way("all", "deviation"),
    "whitened": Way("all", "variance"),
    "others_std": Way("others", "others"),
}
ADVANTAGES = tuple(WAYS)
OF_TOKENS = ("none", "whitened")  # every token has its own
_MANY = 64  # answers whose others are not written out for each


def _agree(x: torch.Tensor) -> torch.Tensor:
    """Return where all are equal: their mean may be off by a rounding, which a small eps would blow up."""
    return x.amax(-1, keepdim=True) == x.amin(-1, keepdim=True)


def _over_deviation_of_others(
    x: torch.Tensor, apart: torch.Tensor, eps: float, unbiased: bool
) -> torch.Tensor:
    """Return ``apart`` over (standard deviation of the others + eps); undivided where the others agree."""
    n = x.shape[-1]
    ordered = x.sort(-1).values
    least = torch.where(x == ordered[..., :1], ordered[..., 1:2], ordered[..., :1])
    most = torch.where(x == ordered[..., -1:], ordered[..., -2:-1], ordered[..., -1:])
    if n > _MANY:  # from the sums of all, which for few answers loses digits: the others may be nearly equal
        c = x - x.mean(-1, keepdim=True)
        squares = (c * c).sum(-1, keepdim=True) - c * c * n / (n - 1)
        spread = (squares.clamp(min=0.0) / (n - 1 - int(unbiased))).sqrt()
    elif n > 2:
        others = torch.stack([torch.cat([x[..., :i], x[..., i + 1 :]], -1) for i in range(n)], -2)
        spread = others.std(-1, correction=int(unbiased))
    else:  # one other has no deviation
        return apart
    return torch.where(most > least, apart / (spread + eps), apart)


def whitened(
    x: torch.Tensor,
    eps: float = 1e-8,
    unbiased: bool = True,
    floor: Literal["added", "least"] = "added",
    keep_mean: bool = False,
) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance), where eps is added to the variance or is the least that it can be.

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
    n, way = x.shape[-1], WAYS[how]
    if not way.baseline:
        return x
    if n < 2:
        what = "token" if how in OF_TOKENS else "answer"
        raise ValueError(
            f"advantage={how!r} got a group of {n} {what}, expected at least two: nothing is left to compare "
            "it with"
        )
    if way.spread == "variance":
        return whitened(x, eps, unbiased)
    apart = x - x.mean(-1, keepdim=True)
    if way.baseline == "others":
        apart = apart * n / (n - 1)
    if way.spread == "others":
        return _over_deviation_of_others(x, apart, eps, unbiased)
    if way.spread == "deviation":
        return torch.where(_agree(x), 0.0, apart / (x.std(-1, keepdim=True, correction=int(unbiased)) + eps))
    return apart
