"""One token whose whole distributions are given, and a batch on which clamps bind."""

import torch

from kl_companion import Rollout, prefix_tree


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
