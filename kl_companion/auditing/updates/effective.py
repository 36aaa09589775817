"""What a KL coefficient is worth in an update: update = a grad E[R] - b grad KL + rest, and beta = b / a."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from kl_companion.auditing.updates.advantages import Advantage, expected_advantages
from kl_companion.auditing.worlds.objectives import fields_and_values, get_objective
from kl_companion.checks import check_choice, check_finite, check_scalar, check_shape
from kl_companion.tabular import Problem

REWARD = "expected_reward"
ZERO = 1e-10  # length of a gradient that is none
_ROUNDING = 1e-13  # of a coefficient between an update and a gradient of length 1
# {what the rewards are of: objectives and weights}; None is minus the mean reward of the prompt
REWARDS: dict[str, dict[str, float | None]] = {
    REWARD: {"expected_reward": 1.0},
    "expected_reward_per_token": {"expected_reward_per_token": 1.0},
    "centered_reward_per_token": {"expected_reward_per_token": 1.0, "expected_inverse_length": None},
}


class Share(NamedTuple):
    """An update as a sum of gradients, by least squares.

    Attributes:
        gain: a, the factor of the gradient of the expected reward, below 0 where the update lowers it; NaN
            where that gradient is zero.
        charge: b, what is subtracted of the penalty's gradient; NaN where that gradient is zero.
        rest: Degrees between the update and the sum; 0 where the sum is all of it, NaN of no update.
        size: Length of the update.
    """

    gain: float
    charge: float
    rest: float
    size: float

    @property
    def effective_beta(self) -> float:
        """Return b / |a|: the coefficient that the penalty has where the reward has 1, or -1.

        It is negative where the update leaves the reference, whatever the sign of the gain is. NaN where
        there is no reward to compare with; infinite where the reward has no gain.
        """
        if self.gain == 0:
            none = self.charge == 0 or math.isnan(self.charge)
            return math.nan if none else math.copysign(math.inf, self.charge)
        return self.charge / abs(self.gain)


def share(
    update: torch.Tensor, at: Problem, penalty: str | Mapping[str, float], *, reward: str = REWARD
) -> Share:
    """An update [rows, vocab] as a sum of the gradients of the expected reward and of a penalty.

    Args:
        update: [rows, vocab].
        at: The prompt.
        penalty: The objective that is subtracted, or a sum of them, {name: weight}.
        reward: One of `REWARDS`.

    Raises:
        ValueError: an unknown objective or reward, an update of another shape or not finite, or a penalty
            whose gradient is a multiple of that of the reward.
    """
    check_choice("reward", reward, REWARDS)
    check_shape("update", update, at.logits.shape, "the logits [rows, vocab]")
    check_finite("update", update)
    parts = {penalty: 1.0} if isinstance(penalty, str) else dict(penalty)
    mean = (at.probabilities() * at.rewards).sum().item()
    rewards = {n: -mean if w is None else w for n, w in REWARDS[reward].items()}
    fields = fields_and_values({n: get_objective(n) for n in (*rewards, *parts)}, at)

    def whole(weights: Mapping[str, float]) -> torch.Tensor:
        return sum((w * fields[n][1].flatten() for n, w in weights.items()), torch.zeros(update.numel()))

    return _fitted(update.flatten(), whole(rewards), whole(parts))


def share_of_answers(
    advantages: torch.Tensor, rewards: torch.Tensor, costs: torch.Tensor, probability: torch.Tensor
) -> Share:
    """Expected advantages of answers as a x reward - b x cost + a constant, by least squares.

    Args:
        advantages: Of every answer, [count].
        rewards: [count].
        costs: [count].
        probability: [count]; the weights of the fit.

    Raises:
        ValueError: shapes that differ, numbers that are not finite, or costs that go with the rewards.
    """
    for name, x in (("advantages", advantages), ("rewards", rewards), ("costs", costs)):
        check_shape(name, x, probability.shape, "probability [count]")
        check_finite(name, x)
    weight = probability.sqrt()

    def centered(x: torch.Tensor) -> torch.Tensor:
        return (x - (probability * x).sum()) * weight

    return _fitted(centered(advantages), centered(rewards), centered(costs))


def multiples(x: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> tuple[dict[str, float], float]:
    """The sum of multiples of fields that is nearest to x: {name: factor}, and the degrees between them.

    Args:
        x: [entries].
        fields: [entries] each; one that is zero gets no factor.

    Returns:
        The factors, 0 each where x is zero; and the angle, NaN where x is zero.

    Raises:
        ValueError: fields of which one is a sum of multiples of the others.
    """
    size = x.norm().item()
    held = {n: f for n, f in fields.items() if f.norm() > ZERO}
    if not held or not size > ZERO:
        return dict.fromkeys(held, 0.0), 90.0 if size > ZERO else math.nan
    columns = torch.stack([f / f.norm() for f in held.values()], 1)
    fit = torch.linalg.lstsq(columns, (x / size).unsqueeze(-1), rcond=ZERO, driver="gelsd")
    if fit.rank < len(held):
        *others, last = held
        raise ValueError(
            f"the gradient of the {last} is a multiple of that of the {' and the '.join(others)} here, "
            "expected a world that tells them apart"
        )
    solution = fit.solution[:, 0]
    solution = solution.where(solution.abs() > _ROUNDING, 0.0)
    missed = min(1.0, (columns @ solution - x / size).norm().item())
    factors = {n: (c * size / f.norm()).item() for (n, f), c in zip(held.items(), solution, strict=True)}
    return factors, math.degrees(math.asin(missed))


def _fitted(update: torch.Tensor, reward: torch.Tensor, penalty: torch.Tensor) -> Share:
    factors, rest = multiples(update, {"reward": reward, "penalty": penalty})
    gain, charge = (factors.get(n, math.nan) for n in ("reward", "penalty"))
    return Share(gain, -charge, rest, update.norm().item())


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
    """What becomes of beta in the `coin_world`.

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
