"""Exact expected updates of losses whose advantages compare the sequences of a group.

How often each sequence was drawn is all that a group is to an advantage that compares its members, so the
groups are enumerated as multisets with their multinomial chances: C(count + n - 1, n) of them instead of
count^n.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_companion.tabular.expectations import multisets
from kl_companion.tabular.scores import world
from kl_companion.tabular.worlds import Problem


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
