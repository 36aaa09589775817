"""Which way the rewards move the expected reward in an update: the sign of its policy part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kl_companion.auditing.updates.effective import Share
from kl_companion.auditing.worlds.objective import field
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.tabular.populations import Population

_SAME = 1e-6  # of an update: trainers compute in float32, where terms that cancel leave a rounding
_SURE = 4.0  # times as large as the rest of a fit is a reward's part whose sign can be read off


def reward_sign(
    share: Share,
    update: torch.Tensor,
    at: Population,
    under: Callable[[Population], torch.Tensor] | None = None,
) -> float:
    """Return 1 where the rewards move E[R] up, -1 where they move it down, 0 where they have no effect.

    Rewards have no effect if neither exchanging nor leveling them changes the update. The sign of a fitted
    gain is no such evidence, because the gradient of a KL term can have a part along that of E[R]. The sign
    is that of the gain where the fit is good, else that of the change.

    Args:
        share: The update as a sum of gradients.
        update: [rows, vocab].
        at: The prompt.
        under: Computes the update of the prompt with other rewards, [rows, vocab]; None where that is too
            slow.

    Returns:
        The sign; NaN where all rewards are equal, and where it is not known.
    """
    gradient, rewards = field(OBJECTIVES["expected_reward"], at.problem), at.problem.rewards
    if math.isnan(share.gain) or rewards.max() == rewards.min():
        return math.nan

    def moved(other: torch.Tensor) -> torch.Tensor:
        assert under is not None
        return update - under(Population(at.problem._replace(rewards=other), at.which))

    change = None
    if under is not None:
        try:
            change = moved(rewards.max() + rewards.min() - rewards)
            same = _SAME * share.size
            if change.norm() <= same and moved(rewards.mean().expand_as(rewards)).norm() <= same:
                return 0.0
        except ValueError:  # a loss that refuses the other rewards
            change = None
    part = abs(share.gain) * gradient.norm().item()
    if part > _SAME * share.size and part > _SURE * math.sin(math.radians(share.rest)) * share.size:
        return math.copysign(1.0, share.gain)
    return math.nan if change is None else math.copysign(1.0, (change * gradient).sum().item())
