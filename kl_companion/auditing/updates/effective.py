"""What a KL coefficient is worth in an update: update = a grad E[R] - b grad KL + rest, and beta = b / a."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch

from kl_companion.auditing.objective import fields_and_values
from kl_companion.auditing.objectives import OBJECTIVES
from kl_companion.auditing.solve import ZERO
from kl_companion.auditing.updates.advantages import Advantage, expected_advantages
from kl_companion.checks import check_choice, check_finite, check_scalar, check_shape
from kl_companion.tabular import Problem

REWARD = "expected_reward"
_ROUNDING = 1e-13  # of a coefficient between an update and a gradient of length 1


class Share(NamedTuple):
    """An update as a sum of gradients, by least squares.

    Attributes:
        gain: a, the factor of the gradient of the expected reward; NaN where that gradient is zero.
        charges: {objective: b}, what is subtracted of its gradient; NaN where that gradient is zero.
        rest: Degrees between the update and the sum; 0 where the sum is all of it, NaN of no update.
        size: Length of the update.
    """

    gain: float
    charges: Mapping[str, float]
    rest: float
    size: float

    def effective_beta(self, objective: str) -> float:
        """b / a: the coefficient that the objective has where the reward has 1.

        NaN where there is no reward to compare with; infinite where the reward has no gain.
        """
        b = self.charges[objective]
        if self.gain == 0:
            return math.nan if b == 0 or math.isnan(b) else math.copysign(math.inf, b)
        return b / self.gain


def share(update: torch.Tensor, at: Problem, objectives: Collection[str]) -> Share:
    """An update [rows, vocab] as a sum of the gradients of the expected reward and of other objectives.

    Args:
        update: What a step adds to the logits.
        at: The world.
        objectives: Names of objectives besides the expected reward.

    Raises:
        ValueError: an unknown objective or the expected reward again, an update of another shape or not
            finite, or gradients of which one is a sum of the others.
    """
    for name in objectives:
        check_choice("objective", name, [n for n in OBJECTIVES if n != REWARD])
    check_shape("update", update, at.logits.shape, "the logits [rows, vocab]")
    check_finite("update", update)
    known = {n: OBJECTIVES[n] for n in (REWARD, *objectives)}
    fields = {n: g.flatten() for n, (_, g) in fields_and_values(known, at).items()}
    return _fitted(update.flatten(), fields)


def share_of_answers(
    advantages: torch.Tensor, rewards: torch.Tensor, costs: torch.Tensor, probability: torch.Tensor
) -> Share:
    """Expected advantages of answers as a x reward - b x cost + a constant, by least squares.

    Args:
        advantages: Of every answer, [count].
        rewards: [count].
        costs: [count].
        probability: [count]; the weights of the fit.

    Returns:
        The share, whose one charge is called ``"cost"``.

    Raises:
        ValueError: shapes that differ, numbers that are not finite, or costs that go with the rewards.
    """
    for name, x in (("advantages", advantages), ("rewards", rewards), ("costs", costs)):
        check_shape(name, x, probability.shape, "probability [count]")
        check_finite(name, x)
    weight = probability.sqrt()

    def centered(x: torch.Tensor) -> torch.Tensor:
        return (x - (probability * x).sum()) * weight

    return _fitted(centered(advantages), {REWARD: centered(rewards), "cost": centered(costs)})


def _fitted(update: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Share:
    size = update.norm().item()
    held = {n: f for n, f in fields.items() if f.norm() > ZERO}
    if not held or size <= ZERO:
        nothing = dict.fromkeys(fields, math.nan) | dict.fromkeys(held, 0.0)
        gain = nothing.pop(REWARD)
        return Share(gain, nothing, math.nan if size <= ZERO else 90.0, size)
    columns = torch.stack([f / f.norm() for f in held.values()], 1)
    fit = torch.linalg.lstsq(columns, (update / size).unsqueeze(-1), rcond=ZERO, driver="gelsd")
    if fit.rank < len(held):
        raise ValueError(
            f"of the {len(held)} gradients of {', '.join(held)} only {int(fit.rank)} are independent here, "
            "expected a world that tells them apart, or fewer of them"
        )
    solution = fit.solution[:, 0]
    solution = solution.where(solution.abs() > _ROUNDING, 0.0)
    missed = (columns @ solution - update / size).norm().item()
    found = dict.fromkeys(fields, math.nan)
    found |= {n: (c * size / f.norm()).item() for (n, f), c in zip(held.items(), solution, strict=True)}
    gain = found.pop(REWARD)
    return Share(gain, {n: -c for n, c in found.items()}, math.degrees(math.asin(min(1.0, missed))), size)


def coin_world(success: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards of 0 and 1 and, independent of them, summed log-ratios of +1 and -1 with equal chance.

    Returns:
        (rewards, log-ratios, probability) of the four kinds of answer, [4] each.

    Raises:
        ValueError: a chance that is not between 0 and 1.
    """
    if not 0 < success < 1:
        raise ValueError(f"success is {success}, expected a chance between 0 and 1")
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    costs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    right = torch.full_like(rewards, success)  # of two plain numbers `where` makes single precision
    return rewards, costs, torch.where(rewards == 1, right, 1 - right) / 2


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
    """What becomes of beta in the `coin_world`; the charge is called ``"cost"``.

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
        ValueError: as `coin_world` and `expected_advantages`; a beta that is not finite.
    """
    check_scalar("beta", beta)
    rewards, costs, probability = coin_world(success)
    returns = rewards - beta * costs if before else rewards
    a = expected_advantages(how, returns, probability, group, eps=eps, unbiased=unbiased)
    return share_of_answers(a if before else a - beta * costs, rewards, costs, probability)
