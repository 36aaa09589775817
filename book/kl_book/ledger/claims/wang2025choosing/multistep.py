"""Section 7 on several steps: weights per step, critics, what else biases an update (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, worst
from kl_book.ledger.claims.ground.groups import (
    centered_gradient,
    groups,
    standardized,
    worlds_with_group_sizes,
)
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.sums import kl_gradient, mean, terms
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, trees
from kl_companion.tabular import Problem, prefix_tree


@cache
def steps_elsewhere() -> tuple[Problem, ...]:
    """Trees that another policy samples."""
    drawn = [prefix_tree(3, 2, seed=s, off_policy=True, scale=2.0) for s in range(3)]
    return (*(p for p in sampled_elsewhere() if p.rows.shape[1] > 1), *drawn)


def _token_ratios(problem: Problem) -> torch.Tensor:
    """pi/mu of every token, 1 outside the mask, [count, length]."""
    return (problem.token_logp(problem.logits) - problem.token_logp(problem.sampled_from)).exp()


def _expected_cost(problem: Problem) -> torch.Tensor:
    """Mean under the policy of the log-ratios from each token on, given all up to it, [count, length]."""
    t, out = terms(problem), []
    p, cost = t.logp.sum(-1).exp(), sum_from_here(t.log_ratio)
    tokens = torch.where(problem.completion_mask > 0, problem.sequences, -1)
    for step in range(tokens.shape[1]):
        same = (tokens[:, None, : step + 1] == tokens[None, :, : step + 1]).all(-1).double()
        out.append((same @ (p * cost[:, step])) / (same @ p))
    return torch.stack(out, dim=1)


def _update(problem: Problem, charge: torch.Tensor) -> torch.Tensor:
    """E_mu[sum_t c_t s_t], [rows, vocab]."""
    t = terms(problem)
    return mean(t.p, torch.einsum("it,itrv->irv", charge * problem.completion_mask, t.scores))


def _charges(problem: Problem) -> dict[str, torch.Tensor]:
    """What multiplies the score of each token: log-ratios from it on, weighted in four ways."""
    ratio, cost = _token_ratios(problem), terms(problem).log_ratio
    until = ratio.cumprod(-1)
    return {
        "own token": ratio * sum_from_here(cost),
        "own token, values": ratio * _expected_cost(problem),
        "every step": sum_from_here(until * cost),
        "up to the token, values": until * _expected_cost(problem),
    }


@claim("WZ-7.1-multistep")
def several_steps_need_weights_or_values() -> Iterator[Found]:
    """The token's own ratio is not enough; a ratio for every step is, or values after the token's product."""
    errors, with_values = [], []
    for problem in steps_elsewhere():
        gradient = kl_gradient(problem)
        found = {name: apart(_update(problem, c), gradient) for name, c in _charges(problem).items()}
        errors.append(less(0.0, found["own token"]))
        errors += [found["every step"], found["up to the token, values"]]
        with_values.append(found["own token, values"])
    for problem in trees():  # on-policy all of them are right
        errors += [apart(_update(problem, c), kl_gradient(problem)) for c in _charges(problem).values()]
    yield from each_form(
        worst(errors),
        min_with_values=min(with_values),
        max_with_values=max(with_values),
        number_of_with_values=len(with_values),
    )


def _advantages(problem: Problem, critic: torch.Tensor, decay: float) -> torch.Tensor:
    """Generalized advantages of the log-ratios as costs, discount 1, [count, length]."""
    mask = problem.completion_mask
    value = critic[problem.rows] * mask
    later = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    delta = (terms(problem).log_ratio + later - value) * mask
    out, running = [], torch.zeros_like(value[:, 0])
    for step in reversed(range(mask.shape[1])):
        running = delta[:, step] + decay * running
        out.append(running)
    return torch.stack(out[::-1], dim=1)


@claim("WZ-7.2-extra-bias")
def where_more_bias_comes_from() -> Iterator[Found]:
    """A wrong critic inside GAE and a division by the group's spread bias the update; a baseline does not."""
    errors = []
    for problem in trees():
        gradient, critic = kl_gradient(problem), values_of_prefixes(problem)
        wrong = critic + torch.sin(2.0 + torch.arange(len(critic)).double())
        for decay in (0.0, 0.5, 1.0):
            perfect, learned = (_update(problem, _advantages(problem, c, decay)) for c in (critic, wrong))
            errors.append(apart(perfect, gradient))
            errors.append(apart(learned, gradient) if decay == 1.0 else differs(learned, gradient, by=1e-3))
    cosines = []
    for problem, n in worlds_with_group_sizes():
        if problem.logits.shape[-1] == 2 and len(problem.logits) == 1:
            continue  # one free parameter: there is but one direction
        p, index = groups(problem, n)
        cost = terms(problem).log_ratio.sum(-1)[index]
        found = mean(p, torch.einsum("gi,girv->grv", standardized(cost), terms(problem).score[index]) / n)
        plain, kl = mean(p, centered_gradient(problem, n, "leave_one_out")), kl_gradient(problem)
        errors.append(apart(plain, kl))
        cosines.append(float((found * kl).sum() / (found.norm() * kl.norm())))
    errors.append(less(max(cosines), 1.0, by=1e-4))
    yield from each_form(worst(errors), min_cosines=min(cosines), max_cosines=max(cosines))
