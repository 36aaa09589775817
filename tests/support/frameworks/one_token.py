"""One token whose whole distributions are given, a batch on which clamps bind, and gradients compared."""

import torch

from kl_companion import Rollout, prefix_tree
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import setting


def one_token(policy, teacher, token=0, sampler=None):
    """Probabilities of every token under the policy, the reference and the sampler."""

    def logits(p):
        return torch.tensor([[p]], dtype=torch.float64).log()

    return Rollout.from_logits(
        torch.tensor([[token]]),
        torch.ones(1, 1, dtype=torch.float64),
        logits(policy).requires_grad_(),
        logits(teacher),
        behavior_logits=None if sampler is None else logits(sampler),
    )


def batch(off_policy=True, scale=6.0):
    """Log-ratios of which some are clamped."""
    problem = prefix_tree(3, 3, seed=2, eos=True, off_policy=off_policy, scale=scale)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 3, 5, 9, 12]))


def gradients(formula, function, off_policy):
    """Of two settings on one batch."""
    found = []
    for name in (formula, function):
        r = batch(off_policy, scale=3.0)
        found.append(torch.autograd.grad(exactly(setting(name).loss)(r), r.logits)[0])
    return found


def value_and_slope(loss, seed=0):
    """Of a loss without its casts, off-policy."""
    problem = prefix_tree(3, 3, seed=seed, eos=True, off_policy=True)
    r = problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))
    value = exactly(loss)(r)
    return value.item(), torch.autograd.grad(value, r.logits)[0]
