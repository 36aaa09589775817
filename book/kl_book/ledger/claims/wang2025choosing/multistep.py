"""Section 7 on several steps: weights per step, critics, what else biases an update (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, same
from kl_book.ledger.claims.ground import sums
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.groups import (
    centered_gradient,
    groups,
    standardized,
    worlds_with_group_sizes,
)
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.world import World, each
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, trees
from kl_companion.tabular import Problem, prefix_tree


@cache
def steps_elsewhere() -> tuple[Problem, ...]:
    """Trees that another policy samples."""
    drawn = [prefix_tree(3, 2, seed=s, off_policy=True, scale=2.0) for s in range(3)]
    return (*(p for p in sampled_elsewhere() if p.rows.shape[1] > 1), *drawn)


def _expected_cost(w: World) -> torch.Tensor:
    """Mean under the policy of the log-ratios from each token on, given all up to it, [count, length]."""
    cost, out = sum_from_here(w.t.log_ratio), []
    tokens = torch.where(w.problem.completion_mask > 0, w.problem.sequences, -1)
    for step in range(tokens.shape[1]):
        alike = (tokens[:, None, : step + 1] == tokens[None, :, : step + 1]).all(-1).double()
        out.append((alike @ (w.pi * cost[:, step])) / (alike @ w.pi))
    return torch.stack(out, dim=1)


def _errors(w: World) -> dict[str, float]:
    """Error of the update with each of four charges of a token: weighted log-ratios from it on."""
    problem, cost = w.problem, w.t.log_ratio
    ratio = (problem.token_logp(problem.logits) - problem.token_logp(problem.sampled_from)).exp()
    until = ratio.cumprod(-1)
    charges = {
        "own token": ratio * sum_from_here(cost),
        "own token, values": ratio * _expected_cost(w),
        "every step": sum_from_here(until * cost),
        "up to the token, values": until * _expected_cost(w),
    }
    return {name: apart(w.E(w.tokens(charge)), w.d_kl) for name, charge in charges.items()}


@claim("WZ-7.1-multistep")
def several_steps_need_weights_or_values() -> Iterator[Found]:
    """The token's own ratio is not enough; a ratio for every step is, or values after the token's product."""
    with_values = []
    for w in each(steps_elsewhere)():
        errors = _errors(w)
        yield less(0.0, errors["own token"])
        yield same(errors["every step"], 0.0)
        yield same(errors["up to the token, values"], 0.0)
        with_values.append(errors["own token, values"])
    for w in each(trees)():  # on-policy all of them are right
        for error in _errors(w).values():
            yield same(error, 0.0)
    yield numbers(least=min(with_values), most=max(with_values), trees=len(with_values))


def _advantages(w: World, critic: torch.Tensor, decay: float) -> torch.Tensor:
    """Generalized advantages of the log-ratios as costs, discount 1, [count, length]."""
    mask = w.problem.completion_mask
    value = critic[w.problem.rows] * mask
    later = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    delta = (w.t.log_ratio + later - value) * mask
    out, running = [], torch.zeros_like(value[:, 0])
    for step in reversed(range(mask.shape[1])):
        running = delta[:, step] + decay * running
        out.append(running)
    return torch.stack(out[::-1], dim=1)


@claim("WZ-7.2-extra-bias")
def where_more_bias_comes_from() -> Iterator[Found]:
    """A wrong critic inside GAE and a division by the group's spread bias the update; a baseline does not."""
    for w in each(trees)():
        critic = values_of_prefixes(w.problem)
        wrong = critic + torch.sin(2.0 + torch.arange(len(critic)).double())
        for decay in (0.0, 0.5, 1.0):
            yield same(w.E(w.tokens(_advantages(w, critic, decay))), w.d_kl)
            learned = w.E(w.tokens(_advantages(w, wrong, decay)))
            yield same(learned, w.d_kl) if decay == 1.0 else differs(learned, w.d_kl, by=1e-3)
    cosines = []
    for problem, n in worlds_with_group_sizes():
        if problem.logits.numel() == 2:
            continue  # one free parameter: there is but one direction
        w, (chance, index) = World(problem), groups(problem, n)
        scaled = torch.einsum("g,gi,girv->rv", chance, standardized(w.l[index]), w.s[index])
        yield same(sums.mean(chance, centered_gradient(problem, n, "leave_one_out")), w.d_kl)
        cosines.append(float((scaled * w.d_kl).sum() / (scaled.norm() * w.d_kl.norm())))
    yield less(max(cosines), 1.0, by=1e-4)
    yield numbers(least=min(cosines), most=max(cosines))
