"""Prompts with rewards: four answers of one to three tokens, of which some are right."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kl_companion.checks import check_finite, check_scalar, check_shape
from kl_companion.tabular import Problem
from kl_companion.tabular.populations import Population

# answers 0, 1 0, 1 1 0 and 1 1 1, of which token 0 ends the first three
_TOKENS = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
_MASK = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]).double()
_ROWS = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 1, 2], [0, 1, 2]])
RIGHT = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
GRADED = torch.tensor([0.0, 0.7, 0.2, 1.0], dtype=torch.float64)
# log policy / reference of the answers before the reference is normalized: no function of the reward
LOG_RATIOS = (0.6, -0.4, -0.5, 0.3)
# log policy / sampler of the same, for stale samples: two ratios leave a clip range of 0.2
_STALE = (-0.3, 0.35, 0.1, -0.05)


def prompt(
    success: float = 0.5,
    rewards: torch.Tensor | Sequence[float] | None = None,
    *,
    off_policy: bool = False,
    scale: float = 1.0,
) -> Population:
    """One prompt whose answers are right with a given chance, and a batch in exact proportion.

    Args:
        success: Chance that a sampled answer is one of the two right ones, a multiple of 1/1000 between 0 and
            1.
        rewards: Of the four answers; 1 for the right ones and 0 for the others by default.
        off_policy: Whether an older policy sampled; the chance is that of the sampler.
        scale: Of the log-ratio of policy and reference.

    Raises:
        ValueError: a chance that is not between 0 and 1, or no multiple of 1/1000; other than four finite
            rewards; a scale that is not finite.
    """
    thousandths = round(success * 1000) if 0 < success < 1 else 0
    if not 0 < thousandths < 1000 or abs(thousandths - success * 1000) > 1e-9:
        raise ValueError(f"success is {success}, expected a multiple of 0.001 between 0 and 1")
    check_scalar("scale", scale)
    given = RIGHT if rewards is None else torch.as_tensor(rewards, dtype=torch.float64)
    check_shape("rewards", given, RIGHT.shape, "the answers [4]")
    check_finite("rewards", given)
    right, wrong = thousandths, 1000 - thousandths  # each is drawn from two answers, 2 : 3
    counts = torch.tensor([2 * wrong, 2 * right, 3 * wrong, 3 * right])
    counts = counts // math.gcd(*counts.tolist())
    sampled = counts.double() / counts.sum()
    policy = sampled * torch.tensor(_STALE, dtype=torch.float64).exp() if off_policy else sampled
    policy = policy / policy.sum()
    reference = policy * (-scale * torch.tensor(LOG_RATIOS, dtype=torch.float64)).exp()
    problem = Problem(
        _logits(policy),
        _logits(reference / reference.sum()),
        _logits(sampled) if off_policy else None,
        _TOKENS,
        _MASK,
        _ROWS,
        given,
    )
    return Population(problem, torch.arange(4).repeat_interleave(counts))


def _logits(answers: torch.Tensor) -> torch.Tensor:
    """Logits [3, 2] of a policy whose answers have these probabilities."""
    reach = answers.flip(0).cumsum(0).flip(0)  # of the answer and those behind it
    first = answers[:3]
    return torch.stack([first, reach[1:]], -1).log()


def equal_rewards(value: float = 1.0) -> Population:
    """A prompt all of whose answers have one reward."""
    return prompt(0.5, [value] * 4)
