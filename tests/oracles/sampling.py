"""Expectations over sampled groups, by walking every group of leaves; shares no code with the package.

Worlds are the dicts of `tests.oracles.worlds`: ``leaves`` (tuples of tokens) and ``row`` (prefix to row of
logits). A loss takes the list of ``(leaf, steps, ref_steps)`` of one group; ``steps`` holds the log-prob of
each token under the policy, as tensors that carry its gradient.
"""

import itertools
import math

import torch


def as_world(problem) -> dict:
    """The dict of a problem, from its fields sequences, completion_mask, rows, rewards and logits."""
    leaves: list[tuple[int, ...]] = []
    row: dict[tuple[int, ...], int] = {}
    for ids, mask, rows in zip(
        problem.sequences.tolist(), problem.completion_mask.tolist(), problem.rows.tolist(), strict=True
    ):
        leaf = tuple(t for t, m in zip(ids, mask, strict=True) if m)
        leaves.append(leaf)
        for i in range(len(leaf)):
            assert row.setdefault(leaf[:i], rows[i]) == rows[i]  # one row of logits per prefix
    assert sorted(row.values()) == list(range(len(problem.logits)))
    return {"leaves": leaves, "row": row, "reward": problem.rewards.tolist()}


def steps(world: dict, logits: torch.Tensor, leaf: tuple[int, ...]) -> list[torch.Tensor]:
    """Log-prob of each token of one leaf."""
    out = []
    for i, token in enumerate(leaf):
        scores = logits[world["row"][leaf[:i]]]
        out.append(scores[token] - torch.log(sum(torch.exp(x) for x in scores)))
    return out


def chance(world: dict, logits: torch.Tensor, leaf: tuple[int, ...]) -> float:
    """Probability of one leaf, as a number without gradient."""
    return math.exp(math.fsum(x.item() for x in steps(world, logits.detach(), leaf)))


def expected(
    world: dict,
    policy: torch.Tensor,
    reference: torch.Tensor,
    sampler: torch.Tensor,
    loss,
    size: int,
) -> torch.Tensor:
    """Sum over all groups of (fixed chance of being sampled) times the loss of the group."""
    chances = {leaf: chance(world, sampler, leaf) for leaf in world["leaves"]}
    scored = {
        leaf: (leaf, steps(world, policy, leaf), steps(world, reference, leaf)) for leaf in world["leaves"]
    }
    total = torch.zeros((), dtype=policy.dtype)
    for group in itertools.product(world["leaves"], repeat=size):
        weight = 1.0
        for leaf in group:
            weight = weight * chances[leaf]
        total = total + weight * loss([scored[leaf] for leaf in group])
    return total


def moments(chances: list[float], values: list[float], size: int) -> tuple[float, float]:
    """Mean and variance of the average of ``size`` independent draws, over all tuples of draws."""
    first, second = [], []
    for group in itertools.product(range(len(values)), repeat=size):
        weight, average = 1.0, 0.0
        for i in group:
            weight, average = weight * chances[i], average + values[i] / size
        first.append(weight * average)
        second.append(weight * average**2)
    mean = math.fsum(first)
    return mean, math.fsum(second) - mean**2
