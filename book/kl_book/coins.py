"""A prompt whose answers are tosses of two coins, one for the reward and one for the log-ratio, by hand."""

from __future__ import annotations

import torch

from kl_companion.auditing.updates.advantages import WAYS, Advantage, normalizer
from kl_companion.auditing.updates.effective import Share, share_of
from kl_companion.checks import check_finite, check_scalar, check_shape
from kl_companion.tabular.expectations import multisets

_SUM = 1e-6  # how far the sum of probabilities may be from 1


def expected_advantages(
    how: Advantage,
    returns: torch.Tensor,
    probability: torch.Tensor,
    group: int | None,
    *,
    eps: float = 1e-4,
    unbiased: bool = True,
) -> torch.Tensor:
    """Return E[advantage of an answer | the answer], [count]: over all groups that it can be in, exactly.

    Args:
        how: As in `normalizer`; ``"whitened"`` takes every answer for one token.
        returns: Of every answer, [count].
        probability: Of every answer, [count]; all above 0.
        group: Answers per group; None for the limit of large groups, whose mean and variance are those of the
            probabilities.
        eps: As in `normalizer`.
        unbiased: As in `normalizer`; it makes no difference in large groups.

    Raises:
        ValueError: an unknown name, a negative eps, a group too small to compare, more than 1e5 multisets,
            shapes that differ, or probabilities that are not positive or do not sum to 1.
    """
    advantages = normalizer(how, eps=eps, unbiased=unbiased)
    _check_answers(returns, probability)
    if group is not None:
        drawn, chance = multisets(probability, group)
        each = chance.unsqueeze(-1) * advantages(returns[drawn]) / group
        return torch.zeros_like(returns).index_add(0, drawn.flatten(), each.flatten()) / probability
    way = WAYS[how]
    apart = returns - (probability * returns).sum() if way.baseline else returns
    if not way.spread or returns.amax() == returns.amin():
        return apart
    variance = (probability * apart**2).sum()
    return apart / ((variance + eps).sqrt() if way.spread == "variance" else variance.sqrt() + eps)


def _check_answers(returns: torch.Tensor, probability: torch.Tensor) -> None:
    check_shape("returns", returns, probability.shape, "probability [count]")
    check_finite("returns", returns)
    total = probability.sum().item()
    if not (probability.ndim == 1 and probability.amin() > 0 and abs(total - 1) < _SUM):
        raise ValueError(
            f"probability has shape {list(probability.shape)}, its least is {probability.amin():.3g} and its "
            f"sum {total:.9g}, expected [count] positive numbers that sum to 1"
        )


def coin_share(
    success: float,
    beta: float,
    group: int | None,
    *,
    before: bool,
    how: Advantage = "group_std",
    eps: float = 0.0,
    unbiased: bool = False,
) -> Share:
    """Return what becomes of beta where answers have rewards of 0 and 1 and log-ratios of +1 and -1.

    The summed log-ratios have equal chances and are independent of the rewards. Expected advantages are
    fitted by a x reward - b x log-ratio + a constant, weighted by the chances of the four kinds of answer.

    Args:
        success: Chance of a reward of 1.
        beta: The coefficient of the log-ratio.
        group: Answers per group; None for large groups.
        before: Whether the penalty is in the reward before it is normalized; else it is subtracted from the
            advantages, or is a loss of its own with the same expected gradient.
        how: As in `normalizer`; by default the standard deviation of the population, without eps.
        eps: As there.
        unbiased: As there.

    Raises:
        ValueError: a chance that is not between 0 and 1, a beta that is not finite; as `expected_advantages`.
    """
    check_scalar("beta", beta)
    if not 0 < success < 1:
        raise ValueError(f"success is {success}, expected a chance between 0 and 1")
    right, wrong = success / 2, (1 - success) / 2
    rewards, costs, probability = torch.tensor(
        [[1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0], [right, right, wrong, wrong]], dtype=torch.float64
    )
    returns = rewards - beta * costs if before else rewards
    a = expected_advantages(how, returns, probability, group, eps=eps, unbiased=unbiased)
    a = a if before else a - beta * costs
    update, reward, penalty = (
        (x - (probability * x).sum()) * probability.sqrt() for x in (a, rewards, costs)
    )
    return share_of(update, reward, penalty)
