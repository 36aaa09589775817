"""Is a loss one of the registered estimators, sample by sample, under another name?"""

from __future__ import annotations

import torch

from kl_companion.auditing.fit.least_squares import short
from kl_companion.estimators.registry import ESTIMATORS, Estimator
from kl_companion.tabular import Loss, prefix_tree

_TOLERANCE = 1e-10
Samples = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def single_tokens(loss_fn: Loss) -> Samples | None:
    """Log-probs of single tokens, and the loss's value and gradient weight on each; None without one."""
    rows: list[tuple[float, float, float, float]] = []
    for seed in (0, 1):
        problem = prefix_tree(4, 1, seed=seed)
        for i in range(len(problem.sequences)):
            theta = problem.logits.clone().requires_grad_()
            rollout = problem.rollout(theta, torch.tensor([i]))
            (score,) = torch.autograd.grad(rollout.logp.sum(), theta, retain_graph=True)
            try:
                loss = loss_fn(rollout)
            except ValueError:  # it wants a batch
                return None
            if not loss.requires_grad or loss.isnan():
                return None
            (gradient,) = torch.autograd.grad(loss, theta)
            weight = (gradient * score).sum() / (score * score).sum()
            if (gradient - weight * score).norm() > _TOLERANCE * (1 + gradient.norm()):
                return None  # not a multiple of the score: it reads more than the sampled token
            rows.append((rollout.logp.item(), rollout.ref_logp.item(), loss.item(), weight.item()))
    logp, ref_logp, values, weights = torch.tensor(rows, dtype=torch.float64).T
    return logp, ref_logp, values, weights


def reads_heads(entry: Estimator | None, found: Samples | None) -> bool:
    """Whether the gradient of one sample is more than a multiple of its score: logits of others are read.

    Args:
        entry: The estimator that was named, which says so itself.
        found: Of a function: what `single_tokens` found.
    """
    return found is None if entry is None else entry.inputs == "top_k"


def recognize(found: Samples | None) -> tuple[str, float] | None:
    """(name, coefficient) of the sampled estimator that has the same value *and* gradient on every sample.

    None if there is none. Two estimators may share an expected gradient; only the same function of the
    sample is recognized.
    """
    if found is None:
        return None
    logp, ref_logp, values, weights = found
    mine = torch.cat([values, weights])
    for entry in ESTIMATORS.values():
        if entry.inputs != "sampled" or entry.name.startswith("kf_plus_plus("):
            continue  # nobody writes Kf++ of another f by chance, and to derive all of them takes seconds
        x = logp.clone().requires_grad_()
        out = entry.fn(x, ref_logp)
        (slope,) = torch.autograd.grad(out.sum(), x)
        theirs = torch.cat([out.detach(), slope])
        factor = (mine @ theirs / (theirs @ theirs)).item()
        if factor != 0 and (mine - factor * theirs).norm() < _TOLERANCE * mine.norm():
            return entry.name, short(factor)
    return None
