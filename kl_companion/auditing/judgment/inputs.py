"""Inputs of a loss that do not do what their name promises: rewards without an effect on the gradient."""

from __future__ import annotations

import torch

from kl_companion.auditing.reading.subject import Reading
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Population, large_batches, population_tree

_SAME = 1e-11  # of a gradient, relatively: rounding


def dead_rewards(loss_fn: Loss, reading: Reading | None) -> str:
    """Return a sentence on rewards or advantages that do not act, or not in large batches; "" where they do.

    Args:
        loss_fn: A scalar function of a rollout.
        reading: How the function's parameters were read.
    """
    names = [r.name for r in reading.reads if r.role == "rewards"] if reading else []
    if not names:
        return ""
    name, verb = " and ".join(names), "have" if len(names) > 1 or names[0].endswith("s") else "has"
    try:
        places = [population_tree(3, 2, seed=3, eos=True, off_policy=stale) for stale in (False, True)]
        if not any(
            _differ(_of_batch(loss_fn, p), _of_batch(loss_fn, _with_other_rewards(p))) for p in places
        ):
            return f"{name} {verb} no effect on the gradient, whatever the values are."
        limits = [[large_batches(loss_fn, q) for q in (p, _with_other_rewards(p))] for p in places]
    except ValueError:
        return ""
    if any(not x.settles for pair in limits for x in pair):
        return ""
    small = all((a.gradient - b.gradient).norm() <= _SAME * a.contributions for a, b in limits)
    return f"The effect of {name} vanishes as the batch grows, beside that of the rest." if small else ""


def _with_other_rewards(place: Population) -> Population:
    other = torch.randn(len(place.problem.rewards), generator=torch.Generator().manual_seed(5)).double()
    return Population(place.problem._replace(rewards=other), place.which)


def _of_batch(loss_fn: Loss, place: Population) -> torch.Tensor:
    """Gradient of the loss of one batch with respect to the policy's logits."""
    theta = place.problem.logits.clone().requires_grad_()
    loss = loss_fn(place.problem.rollout(theta, place.which))
    if not loss.requires_grad:
        return torch.zeros_like(theta)
    (gradient,) = torch.autograd.grad(loss, theta, materialize_grads=True)
    return gradient


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() > _SAME * (a.norm() + b.norm()))
