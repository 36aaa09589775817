"""Sequences of several tokens: token KLs along them, and the parts of the gradient of their sum."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_book.ledger.claims.ground import errors, worlds
from kl_book.ledger.claims.ground.sums import differentiated, forward_kl, mean, reverse_kl, slopes, terms
from kl_companion.tabular import Problem, prefix_tree


def sum_from_here(x: torch.Tensor) -> torch.Tensor:
    """Sum of each entry and those after it, along the last axis."""
    return x.flip(-1).cumsum(-1).flip(-1)


def token_weighted(problem: Problem, coefficient: torch.Tensor) -> torch.Tensor:
    """sum_t c_t s_t of every sequence, [count, rows, vocab], from coefficients [count, length]."""
    return torch.einsum("it,itrv->irv", coefficient * problem.completion_mask, terms(problem).scores)


def sequence_gradients(problem: Problem, baseline: float = 0.0) -> torch.Tensor:
    """Eq (7): (sum of log-ratios - baseline) times (sum of scores), of every sequence."""
    total = terms(problem).log_ratio.sum(-1, keepdim=True) - baseline
    return token_weighted(problem, total.expand_as(problem.completion_mask))


def token_kls(problem: Problem, logits: torch.Tensor, *, forward: bool = False) -> torch.Tensor:
    """KL of the next-token distributions along every sequence, 0 outside the mask, [count, length]."""
    kl = forward_kl if forward else reverse_kl
    rows = kl(logits.log_softmax(-1), problem.ref_logits.log_softmax(-1))
    return rows[problem.rows] * problem.completion_mask


def ratios(problem: Problem) -> torch.Tensor:
    """pi/mu of every token, 1 outside the mask, [count, length]."""
    return (terms(problem).logp - problem.token_logp(problem.sampled_from)).exp()


def loss_gradient(problem: Problem, weight: torch.Tensor, beta: float) -> torch.Tensor:
    """Expected gradient of -sum_n weight log pi_n + beta sum_n KL_n, the KL exact at every visited prefix.

    ``weight``: Detached ratios times advantages, [count, length].
    """
    theta = problem.logits.detach().clone().requires_grad_()
    logp, ref = theta.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    kl = (logp.exp() * (logp - ref)).sum(-1)[problem.rows]
    loss = (beta * kl - weight * problem.token_logp(theta)) * problem.completion_mask
    return torch.autograd.grad((terms(problem).p @ loss).sum(), theta)[0]


def surrogate_gradient(problem: Problem, objective: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Gradient of E_mu[sum_n objective(pi_n/mu_n)], the ratios differentiated as they stand."""
    theta = problem.logits.detach().clone().requires_grad_()
    behavior = problem.token_logp(problem.sampled_from).detach()
    each = objective((problem.token_logp(theta) - behavior).exp()) * problem.completion_mask
    return torch.autograd.grad((behavior.sum(-1).exp() @ each).sum(), theta)[0]


def visit_probabilities(problem: Problem, sampler: torch.Tensor) -> torch.Tensor:
    """Probability that a policy with these logits visits each prefix, from its own tokens, [rows]."""
    p = problem.token_logp(sampler).sum(-1).exp()
    rows = torch.nn.functional.one_hot(problem.rows, len(sampler)) * problem.completion_mask[..., None]
    return p @ rows.amax(1).to(p)


def softmax_pull(theta: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    """Gradient of the KL of one softmax from another in the logits of the first, [..., vocab]."""
    p = theta.softmax(-1)
    x = theta.log_softmax(-1) - anchor.log_softmax(-1)
    return p * (x - (p * x).sum(-1, keepdim=True))


def jacobian(update: Callable[[Problem], torch.Tensor], problem: Problem, step: float = 1e-5) -> torch.Tensor:
    """Derivative of an update in the policy's logits, by central differences, [logits, logits]."""
    columns = []
    for j in range(problem.logits.numel()):
        shift = torch.zeros_like(problem.logits).flatten()
        shift[j] = step
        sides = []
        for sign in (1, -1):
            there = problem._replace(logits=problem.logits + sign * shift.view_as(problem.logits))
            sides.append(update(there).flatten())
        columns.append((sides[0] - sides[1]) / (2 * step))
    return torch.stack(columns, dim=1)


def curl(problem: Problem, name: str) -> float:
    """Largest asymmetry of the Jacobian of the token-level field."""

    def update(there: Problem) -> torch.Tensor:
        return mean(terms(there).p, differentiated(name, there, per_token=True))

    found = jacobian(update, problem)
    return errors.apart(found, found.T)


def prefixes_without_effect(problem: Problem) -> float:
    """Number of prefixes whose next-token distributions could change without changing the sequence KL."""
    logp = problem.token_logp(problem.logits).sum(-1)
    gradient = slopes(lambda ref: reverse_kl(logp, problem.token_logp(ref).sum(-1)), problem.ref_logits)
    return float((gradient.norm(dim=-1) < 1e-12).sum())


def values_of_prefixes(problem: Problem, to_go: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of a number per token over the visits of its prefix, [rows]: what a perfect critic says.

    By default of the log-ratios from the token on.
    """
    t = terms(problem)
    ahead = sum_from_here(t.log_ratio) if to_go is None else to_go
    out = torch.zeros(len(problem.logits)).double()
    for row in range(len(out)):
        here = ((problem.rows == row) & (problem.completion_mask > 0)).double()
        weight = (t.p[:, None] * here).sum()
        out[row] = (t.p[:, None] * here * ahead).sum() / weight.clamp(min=1e-300)
    return out


def longer_trees() -> tuple[Problem, ...]:
    """Trees of two and three tokens; those with end-of-sequence have sequences of unequal length."""
    return (*worlds.trees(), prefix_tree(4, 2, seed=9, scale=3.0))
