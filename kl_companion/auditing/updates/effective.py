"""What a KL coefficient is worth in an update: update = a grad E[R] - b grad KL + rest, and beta = b / a."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.least_squares import ZERO, fits
from kl_companion.auditing.worlds.objectives import fields_and_values, get_objective
from kl_companion.checks import check_choice, check_finite, check_shape
from kl_companion.tabular import Problem

WRITTEN, SPREAD, DISTORTED, OTHER, NONE, LOWERS, IDLE, REPELS = KINDS = (
    "beta as written",
    "beta times the spread of the rewards",
    "beta in large groups only",
    "another coefficient",
    "no KL that acts",
    "the rewards are minimized",
    "the rewards have no effect",
    "the KL is maximized",
)
REWARD = "expected_reward"
# {what the rewards are of: objectives and weights}; None is minus the mean reward of the prompt
REWARDS: dict[str, dict[str, float | None]] = {
    REWARD: {"expected_reward": 1.0},
    "expected_reward_per_token": {"expected_reward_per_token": 1.0},
    "centered_reward_per_token": {"expected_reward_per_token": 1.0, "expected_inverse_length": None},
}
SAME = 0.01  # relative: one number, but for the eps of a normalization
MOSTLY = 30.0  # degrees between an update and the KL's gradient
MORE = 10.0  # times beta, to see whether it has an effect
NOTHING = 1e-12  # length of an update that is zero
_GROWS = 2.0  # at ten times beta: less than that is no coefficient
_ROUNDING = 1e-13  # of a coefficient between an update and a gradient of length 1


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


class OnPrompt(NamedTuple):
    """An update on one prompt, with groups of one size.

    Attributes:
        prompt: ``"1 %"`` to ``"99 %"`` of right answers, ``"graded"`` or ``"equal"`` rewards.
        group: Answers per group; None for large groups and batches.
        deviation: Standard deviation of the prompt's rewards.
        share: The update as a sum of gradients.
        grows: How many times as large the update is with ten times the coefficient; NaN where that is not
            known. On equal rewards 10 is a coefficient, and 1 one without effect.
        reward_sign: Whether the rewards move E[R] up (1), down (-1) or not at all (0), see
            `kl_companion.auditing.updates.direction`; NaN where that is not known.
    """

    prompt: str
    group: int | None
    deviation: float
    share: Share
    grows: float
    reward_sign: float

    @property
    def moves(self) -> bool:
        """Whether there is an update."""
        return self.share.size > NOTHING

    @property
    def ignores_beta(self) -> bool:
        """Whether, on equal rewards, the update is that of the KL and has one size whatever beta is."""
        return math.isnan(self.share.gain) and self.grows < _GROWS and self.share.rest < MOSTLY


def known_signs(seen: Sequence[OnPrompt]) -> list[float]:
    """Return the signs of the rewards' part, where they are known."""
    return [s.reward_sign for s in seen if not math.isnan(s.reward_sign)]


def turned(seen: Sequence[OnPrompt]) -> tuple[float, float]:
    """Return the smallest and the largest rest, in degrees, of updates on rewards that differ; else 0."""
    rests = [s.share.rest for s in seen if s.deviation > 0 and s.moves]
    return min(rests, default=0.0), max(rests, default=0.0)


def of_size(seen: Sequence[OnPrompt], pick: Callable[..., int]) -> list[OnPrompt]:
    """Return the prompts in large groups; where the step does not run on those, in groups of a size."""
    sizes = {s.group for s in seen}
    size = None if None in sizes else pick((n for n in sizes if n), default=None)
    return [s for s in seen if s.group == size]


def share(
    update: torch.Tensor, at: Problem, penalty: str | Mapping[str, float], *, reward: str = REWARD
) -> Share:
    """Return an update [rows, vocab] as a sum of the gradients of the expected reward and of a penalty.

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

    def weighted(weights: Mapping[str, float]) -> torch.Tensor:
        return sum((w * fields[n][1].flatten() for n, w in weights.items()), torch.zeros(update.numel()))

    return share_of(update.flatten(), weighted(rewards), weighted(parts))


def multiples(x: torch.Tensor, fields: Mapping[str, torch.Tensor]) -> tuple[dict[str, float], float]:
    """Return the sum of multiples of fields that is nearest to x: {name: factor}, and the degrees between.

    Args:
        x: [entries].
        fields: [entries] each; one that is zero gets no factor.

    Returns:
        The factors, 0 each where x is zero; and the angle, NaN where x is zero.

    Raises:
        ValueError: fields of which one is a sum of multiples of the others.
    """
    size = x.norm().item()
    sizes = {n: f.norm().item() for n, f in fields.items() if f.norm() > ZERO}
    if not sizes or not size > ZERO:
        return dict.fromkeys(sizes, 0.0), 90.0 if size > ZERO else math.nan
    columns = torch.stack([fields[n] / length for n, length in sizes.items()], 1)
    if torch.linalg.matrix_rank(columns, rtol=ZERO) < len(sizes):
        *others, last = sizes
        raise ValueError(
            f"the gradient of the {last} is a multiple of that of the {' and the '.join(others)} here, "
            "expected a world that tells them apart"
        )
    weights, missed = fits(x, fields, [list(sizes)])
    factors = dict(zip(sizes, weights[0].tolist(), strict=True))
    factors = {n: c if abs(c) * sizes[n] > _ROUNDING * size else 0.0 for n, c in factors.items()}
    return factors, math.degrees(math.asin(min(1.0, missed.item())))


def share_of(update: torch.Tensor, reward: torch.Tensor, penalty: torch.Tensor) -> Share:
    """Return an update as a sum of multiples of two gradients, [entries] each; errors as `multiples`."""
    factors, rest = multiples(update, {"reward": reward, "penalty": penalty})
    gain, charge = (factors.get(n, math.nan) for n in ("reward", "penalty"))
    return Share(gain, -charge, rest, update.norm().item())
