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
from kl_companion.tabular import Problem

REWARD = "expected_reward"


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
            return math.copysign(math.inf, b) if b else math.nan
        return b / self.gain


def share(update: torch.Tensor, at: Problem, objectives: Collection[str]) -> Share:
    """An update [rows, vocab] as a sum of the gradients of the expected reward and of other objectives.

    Raises:
        ValueError: an unknown objective.
    """
    known = {n: OBJECTIVES[n] for n in (REWARD, *objectives)}
    fields = {n: g.flatten() for n, (_, g) in fields_and_values(known, at).items()}
    return fitted(update.flatten(), fields)


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
    """
    weight = probability.sqrt()

    def centered(x: torch.Tensor) -> torch.Tensor:
        return (x - (probability * x).sum()) * weight

    return fitted(centered(advantages), {REWARD: centered(rewards), "cost": centered(costs)})


def fitted(update: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> Share:
    """An update as a sum of fields, by least squares; all [count], and one of them is called `REWARD`."""
    size = update.norm().item()
    held = {n: f for n, f in fields.items() if f.norm() > ZERO}
    if not held or not size > 0:
        nothing = dict.fromkeys(fields, math.nan) | dict.fromkeys(held, 0.0)
        gain = nothing.pop(REWARD)
        return Share(gain, nothing, math.nan if not size > 0 else 90.0, size)
    columns = torch.stack([f / f.norm() for f in held.values()], 1)
    solution = torch.linalg.lstsq(columns, (update / size).unsqueeze(-1), driver="gelsd").solution[:, 0]
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
    return rewards, costs, torch.where(rewards == 1, success, 1 - success) / 2


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
    """
    rewards, costs, probability = coin_world(success)
    returns = rewards - beta * costs if before else rewards
    a = expected_advantages(how, returns, probability, group, eps=eps, unbiased=unbiased)
    return share_of_answers(a if before else a - beta * costs, rewards, costs, probability)
