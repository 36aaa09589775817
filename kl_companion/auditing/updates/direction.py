"""Which way the rewards move the expected reward in an update: the sign of its policy part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kl_companion.auditing.objective import field
from kl_companion.auditing.objectives import OBJECTIVES
from kl_companion.auditing.updates.effective import Share
from kl_companion.tabular import Problem
from kl_companion.tabular.populations import Population

_SAME = 1e-6  # of an update: trainers compute in float32, where terms that cancel leave a rounding
_SURE = 4.0  # times as large as the rest of a fit is a reward's part whose sign can be read off


def reward_sign(
    share: Share, update: torch.Tensor, at: Problem, exchanged: Callable[[], torch.Tensor] | None = None
) -> float:
    """Return 1 where the rewards move E[R] up, -1 where they move it down, 0 where they have no effect.

    The sign of the gain says it where the fit is good. Elsewhere the update is compared with the one under
    exchanged rewards: a term that does not read them cancels, whatever it is.

    Args:
        share: The update as a sum of gradients.
        update: [rows, vocab].
        at: The prompt.
        exchanged: Computes the update under `exchanged_rewards`, [rows, vocab]; None where that is too slow.

    Returns:
        The sign; NaN where all rewards are equal, and where it is not known.
    """
    gradient = field(OBJECTIVES["expected_reward"], at)
    if math.isnan(share.gain) or at.rewards.max() == at.rewards.min():
        return math.nan
    part = abs(share.gain) * gradient.norm().item()
    if part > _SAME * share.size and part > _SURE * math.sin(math.radians(share.rest)) * share.size:
        return math.copysign(1.0, share.gain)
    if exchanged is None:
        return math.nan
    try:
        other = exchanged()
    except ValueError:  # a loss that refuses the other rewards
        return math.nan
    difference = update - other
    if difference.norm() <= _SAME * max(update.norm().item(), other.norm().item()):
        return 0.0
    return math.copysign(1.0, (difference * gradient).sum().item())


def exchanged_rewards(at: Population) -> Population:
    """Return the same prompt with the best reward in the place of the worst, in the same range.

    Args:
        at: The prompt.
    """
    rewards = at.problem.rewards
    return Population(at.problem._replace(rewards=rewards.max() + rewards.min() - rewards), at.which)
