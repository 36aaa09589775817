"""Exact expected updates of losses whose advantages compare the sequences of a group.

How often each sequence was drawn is all that a group is to an advantage that compares its members, so the
groups are enumerated as multisets with their multinomial chances: C(count + n - 1, n) of them instead of
count^n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations_with_replacement

import torch

from kl_companion.tabular.scores import world
from kl_companion.tabular.worlds import MAX_EVALUATIONS, Problem


def multisets(probability: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every group of n independent draws without its order, and the chance of each.

    Args:
        probability: Of every outcome, [count].
        n: Draws per group.

    Returns:
        Indices of outcomes in ascending order, [groups, n], and chances that sum to 1, [groups].

    Raises:
        ValueError: n below 1, or more than 1e5 groups.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    count = len(probability)
    groups = math.comb(count + n - 1, n)
    if groups > MAX_EVALUATIONS:
        raise ValueError(
            f"{count} sequences in groups of {n} are {groups} multisets, expected at most {MAX_EVALUATIONS}: "
            "take a smaller problem or group"
        )
    drawn = torch.tensor(list(combinations_with_replacement(range(count), n)))
    often = torch.nn.functional.one_hot(drawn, count).sum(1).to(probability.dtype)
    ways = math.lgamma(n + 1) - torch.lgamma(often + 1).sum(-1)
    # 0 log 0 is 0: a sequence of probability zero rules out only the groups that contain it
    log_chance = torch.xlogy(often, probability.unsqueeze(0)).sum(-1)
    return drawn, (ways + log_chance).exp()


def group_update(
    advantages: Callable[[torch.Tensor], torch.Tensor], problem: Problem, n: int
) -> torch.Tensor:
    """E[(1/n) sum_i A_i grad log pi(y_i)] over all groups of n sequences, exact, [rows, vocab].

    The direction of ascent: what a policy gradient with these advantages adds to the logits.

    Args:
        advantages: A function of the sequences of every group, indices [groups, n], that returns their
            advantages, [groups, n]. It must not depend on the order within a group.
        problem: One world; sequences are drawn by its sampler.
        n: Sequences per group.

    Raises:
        ValueError: a stack of worlds, n below 1, more than 1e5 multisets, or advantages of another shape.
    """
    if problem.logits.ndim != 2:
        raise ValueError(f"got a stack of {len(problem.logits)} worlds, expected one world")
    at = world(problem)
    drawn, chance = multisets(at.probability, n)
    found = advantages(drawn)
    if found.shape != drawn.shape:
        raise ValueError(
            f"the advantages have shape {list(found.shape)}, expected {list(drawn.shape)}: one per sequence "
            "of every group"
        )
    each = (chance.unsqueeze(-1) * found.detach().to(chance.dtype) / n).flatten()
    total = torch.zeros_like(at.probability).index_add(0, drawn.flatten(), each)
    return at.gradient(total.unsqueeze(-1).expand_as(at.logp), torch.ones_like(at.probability))
