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


# moments of the mean of n draws: every group of n, gradients by autograd on one leaf at a time

# value and gradient weight of one sequence in terms of x = log pi - log pi_ref, by hand
BY_HAND = {
    "k1": (lambda x: x, lambda x: torch.ones_like(x)),
    "k2": (lambda x: x * x / 2, lambda x: x),
    "k3": (lambda x: torch.exp(-x) - 1 + x, lambda x: 1 - torch.exp(-x)),
    "k3_plus_plus": (lambda x: torch.exp(-x) - 1 + x, lambda x: x),
    "k4": (lambda x: x, lambda x: x),
    "k5": (lambda x: -x * torch.exp(-x), lambda x: 1 - torch.exp(-x)),
}


def scores(world: dict, policy: torch.Tensor) -> list[torch.Tensor]:
    """Gradient of the log-prob of each leaf, [rows * vocab] each."""
    out = []
    for leaf in world["leaves"]:
        x = policy.detach().clone().requires_grad_()
        out.append(torch.autograd.grad(sum(steps(world, x, leaf)), x)[0].flatten())
    return out


def log_ratios(world: dict, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """log a - log b of each leaf, without gradient."""
    return [
        sum(steps(world, a.detach(), leaf)) - sum(steps(world, b.detach(), leaf)) for leaf in world["leaves"]
    ]


def of_loss(
    world: dict, policy: torch.Tensor, reference: torch.Tensor, sampler: torch.Tensor, loss
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Value and gradient of loss(steps, ref_steps, sampler_steps) for each leaf."""
    values, gradients = [], []
    for leaf in world["leaves"]:
        x = policy.detach().clone().requires_grad_()
        fixed = (steps(world, other.detach(), leaf) for other in (reference, sampler))
        value = loss(steps(world, x, leaf), *fixed)
        (gradient,) = torch.autograd.grad(value, x)
        values.append(value.detach())
        gradients.append(gradient.flatten())
    return values, gradients


def groups(chances: list[float], size: int):
    """Every group of draws and its probability."""
    for group in itertools.product(range(len(chances)), repeat=size):
        weight = 1.0
        for i in group:
            weight = weight * chances[i]
        yield group, weight


def mean_of(values: list[torch.Tensor], gradients: list[torch.Tensor]):
    """The estimate of a group without coupling."""
    n = len(values)
    return sum(values) / n, sum(gradients) / n


def baselined(kind: str):
    """The estimate of a group whose costs are compared with each other before they multiply the scores."""

    def combine(values: list[torch.Tensor], gradients: list[torch.Tensor]):
        n, total = len(values), torch.zeros_like(gradients[0])
        for i in range(n):
            others = [values[j] for j in range(n) if j != i]
            base = sum(values) / n if kind == "mean" else sum(others) / len(others)
            total = total + (values[i] - base) * gradients[i] / n
        return sum(values) / n, total

    return combine


def estimates(chances, values, gradients, size, combine=mean_of):
    """Every estimate that ``size`` draws can give: probability [G], value [G], gradient [G, parameters]."""
    weights, found_values, found_gradients = [], [], []
    for group, weight in groups(chances, size):
        value, gradient = combine([values[i] for i in group], [gradients[i] for i in group])
        weights.append(weight)
        found_values.append(value)
        found_gradients.append(gradient)
    return torch.tensor(weights, dtype=torch.float64), torch.stack(found_values), torch.stack(found_gradients)


def central(weights: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, variance and fourth central moment of x under the weights; the first axis is summed over."""
    w = weights.reshape(-1, *[1] * (x.ndim - 1))
    mean = (w * x).sum(0)
    return mean, (w * (x - mean) ** 2).sum(0), (w * (x - mean) ** 4).sum(0)
