"""What frameworks divide by a standard deviation before a loss sees it, and what that does to a coefficient.

The audit takes a KL term alone, with coefficient 1. Beside rewards the coefficient is an exchange rate
between the two, and dividing changes it. A penalty in the reward is usually divided together with the reward:
then equal rewards make beta cancel. A term in the loss is added to rewards that are divided alone: then beta
is in units of the divided reward. `effect` enumerates both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import torch

from kl_companion.frameworks.installed import SourceLocation
from kl_companion.rollout import Rollout, center
from kl_companion.tabular import Problem
from kl_companion.tabular.groups import group_update

# returns of groups (or batches) of sequences of one token, [groups, size], to their advantages
Normalize = Callable[[torch.Tensor], torch.Tensor]
Loss = Callable[[Rollout], torch.Tensor]

SIZES = {"group": 4, "batch": 64}
SMALL_BATCH = 16
LARGE, SMALL = 0.1, 0.001  # the two coefficients that are compared


def answers(policy: list[float], reference: list[float] | None = None) -> Problem:
    """A prompt with these answers of one token, of which the first alone is right.

    Args:
        policy: The probability of each, all above 0.
        reference: The same under the reference; the policy itself by default.
    """
    count = len(policy)
    logits, ref_logits = (torch.tensor([p], dtype=torch.float64).log() for p in (policy, reference or policy))
    return Problem(
        logits,
        ref_logits,
        None,
        torch.arange(count).unsqueeze(-1),
        torch.ones(count, 1, dtype=torch.float64),
        torch.zeros(count, 1, dtype=torch.long),
        (torch.arange(count) == 0).double(),
    )


# no two log-ratios of policy to reference agree, so that the penalty is not a function of the reward
WORLD = answers([1 / 4, 1 / 4, 1 / 2], [1 / 8, 1 / 2, 3 / 8])


class Division(NamedTuple):
    """A division by a standard deviation.

    Attributes:
        of: What is divided: ``"rewards and penalty"``, their difference as a whole, or the ``"rewards"``
            alone, with the penalty at full size beside them.
        over: Whose standard deviation it is: of the answers to one prompt (``"group"``), or of all tokens
            that are trained on together (``"batch"``).
        place: The file and the function that divide.
        normalize: Returns to advantages: the framework's own function where it is installed.
        when: The choice under which it acts; "" if it acts by default.
        instead: What to set so that nothing is divided; "" if no option does that.
    """

    of: Literal["rewards and penalty", "rewards"]
    over: Literal["group", "batch"]
    place: SourceLocation
    normalize: Normalize
    when: str = ""
    instead: str = ""


class Effect(NamedTuple):
    """What a division makes of a coefficient, exact, on the three answers of `WORLD`.

    Attributes:
        equal: With equal rewards: how many times larger the update is at beta = 0.1 than at 0.001. 100 where
            beta is a coefficient, 1 where it cancels.
        cosine: With equal rewards at beta = 0.001: of the angle between the update and that of the penalty
            undivided.
        acts_like: With rewards of 0 and 1, at beta = 0.001: the x for which the update is nearest to a
            multiple of grad E[reward] - x grad E[penalty]. Undivided it is beta, times n/(n - 1) where the
            rewards lose the mean of their group and the penalty does not.
        small: The same in a batch of 16 instead of 64; None for a group.
    """

    equal: float
    cosine: float
    acts_like: float
    small: float | None


def standardized(eps: float) -> Normalize:
    """(x - mean) / (standard deviation + eps), the latter with n - 1 in its denominator."""

    def normalize(returns: torch.Tensor) -> torch.Tensor:
        group = torch.arange(len(returns)).repeat_interleave(returns.shape[1])
        return center(returns.flatten(), group, "standardized", eps=eps).view_as(returns)

    return normalize


def over_the_others(eps: float) -> Normalize:
    """(x - mean of the others) / (standard deviation of the others + eps); not divided where that is 0."""

    def normalize(returns: torch.Tensor) -> torch.Tensor:
        size = returns.shape[1]
        rest = torch.stack([torch.cat([returns[:, :i], returns[:, i + 1 :]], 1) for i in range(size)], 1)
        apart, spread = returns - rest.mean(-1), rest.std(-1)
        return torch.where(rest.amax(-1) > rest.amin(-1), apart / (spread + eps), apart)

    return normalize


def whitened(
    *, unbiased: bool, floor: Literal["added", "least"] = "added", keep_mean: bool = False
) -> Normalize:
    """(x - mean) / sqrt(variance), where 1e-8 is added to the variance or is the least that it can be.

    Args:
        unbiased: Whether the variance has n - 1 in its denominator.
        floor: What becomes of the 1e-8.
        keep_mean: Add the mean again, undivided.
    """

    def normalize(returns: torch.Tensor) -> torch.Tensor:
        mean = returns.mean(1, keepdim=True)
        variance = returns.var(1, keepdim=True, unbiased=unbiased)
        variance = variance + 1e-8 if floor == "added" else variance.clamp(min=1e-8)
        return (returns - mean) * variance.rsqrt() + (mean if keep_mean else 0.0)

    return normalize


def _parts(update: torch.Tensor, reward: torch.Tensor, penalty: torch.Tensor) -> float:
    """b / a of the a x reward - b x penalty that is nearest to the update; all [rows, vocab]."""
    basis = torch.stack([reward.flatten(), -penalty.flatten()], -1)
    a, b = torch.linalg.lstsq(basis, update.reshape(-1, 1)).solution.flatten().tolist()
    return float(b / a)


def along(x: torch.Tensor, at: Problem) -> torch.Tensor:
    """E[x grad log pi], [rows, vocab]: the gradient of E[x], for numbers x of every sequence, [count]."""
    return group_update(lambda drawn: x[drawn], at, 1)


@cache
def slope(normalize: Normalize, at: Problem, size: int) -> float:
    """The c of the expected update c x grad E[R], with rewards R of 0 and 1 that are divided and no penalty.

    Args:
        normalize: Of the rewards.
        at: A world whose rewards take two values.
        size: Sequences per group.
    """
    got, once = group_update(lambda drawn: normalize(at.rewards[drawn]), at, size), along(at.rewards, at)
    return ((got * once).sum() / once.square().sum()).item()


def charged_with(loss: Loss, at: Problem) -> torch.Tensor:
    """What a loss in the reward charges every arm of a bandit with, [arms]: its factor of the arm's score."""
    every = at.rollout(at.logits)
    logp = every.logp.detach().requires_grad_()
    rollout = Rollout(every.tokens, every.completion_mask, logp, every.ref_logp)
    (cost,) = torch.autograd.grad(loss(rollout), logp)
    return cost.squeeze(1) * len(cost)


def effect(division: Division, loss: Loss, *, size: int | None = None) -> Effect:
    """What the division makes of a coefficient.

    Args:
        division: What is divided, and how.
        loss: The penalty alone, in the reward, with coefficient 1. It is not called where the rewards alone
            are divided: beside those every term keeps its own gradient.
        size: Answers that are compared with each other; 4 in a group and 64 in a batch by default.
    """
    size, small = size or SIZES[division.over], SMALL_BATCH if division.over == "batch" else None
    if division.of == "rewards":
        like = [SMALL / slope(division.normalize, WORLD, n) for n in (size, small) if n is not None]
        return Effect(LARGE / SMALL, 1.0, like[0], like[1] if small else None)
    cost = charged_with(loss, WORLD)
    reward, penalty = along(WORLD.rewards, WORLD), along(cost, WORLD)

    def update(beta: float, rewards: torch.Tensor, n: int) -> torch.Tensor:
        return group_update(lambda drawn: division.normalize((rewards - beta * cost)[drawn]), WORLD, n)

    strong, weak = (update(beta, torch.zeros_like(cost), size) for beta in (LARGE, SMALL))
    like = [_parts(update(SMALL, WORLD.rewards, n), reward, penalty) for n in (size, small) if n is not None]
    return Effect(
        (strong.norm() / weak.norm()).item(),
        (-(weak * penalty).sum() / weak.norm() / penalty.norm()).item(),
        like[0],
        like[1] if small else None,
    )
