"""Sections 4.1 to 4.3: the gradient of penalties of tokens, with those of later tokens (yao2026future).

A penalty is f(u) of the sampled token, u = pi_ref / pi.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, worst
from kl_book.ledger.claims.ground.sequences import sum_from_here
from kl_book.ledger.claims.ground.sums import kl_gradient, mean, terms
from kl_book.ledger.claims.ground.updates import (
    GENERATORS,
    UTILITIES,
    decoupled_gradient,
    every_token,
    graded,
    later,
    local_slopes,
    penalties,
    penalty_gradient,
    population_mean,
    slope,
    standardized,
    token_field,
    utility_gradient,
    visited_divergence,
)
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.tabular import Problem

BETA = 0.1
DIVERGENCES = ("k1", "k3", "forward", "square")


def regularizer(f: str, problem: Problem) -> torch.Tensor:
    """reg_i of eq (4.4): the penalties from the token on, and the derivative of its own, [count, length]."""
    return sum_from_here(penalties(f, problem)) + local_slopes(f, problem)


def _any_baseline(problem: Problem) -> torch.Tensor:
    """A number for every prefix, given to its tokens, [count, length]."""
    return (1.7 * problem.rows.double() + 0.3).sin() * 3


@claim("FRPO-T4.1")
def gradient_of_a_utility_minus_token_penalties() -> Iterator[Found]:
    """For five f and three utilities, on bandits and trees with and without end-of-sequence."""
    errors = []
    for problem in graded():
        p = population_mean(problem, problem.rewards)
        for f in GENERATORS:
            cost = penalty_gradient(f, problem)
            for name in UTILITIES:
                weight = slope(name, p) * every_token(problem, problem.rewards) - _any_baseline(problem)
                found = token_field(problem, weight - BETA * regularizer(f, problem))
                errors.append(apart(found, utility_gradient(problem, name) - BETA * cost))
    yield from each_form(worst(errors))


@claim("FRPO-eq4.3-baseline")
def a_baseline_of_the_prefix_changes_nothing() -> Iterator[Found]:
    """Any number per prefix has mean zero against the score of the next token."""
    errors = []
    for problem in graded():
        with_it = token_field(problem, regularizer("k3", problem) - _any_baseline(problem))
        errors.append(apart(with_it, penalty_gradient("k3", problem)))
    yield from each_form(worst(errors))


@claim("FRPO-D3-past")
def past_penalties_drop_out() -> Iterator[Found]:
    """The penalties before a token have mean zero against its score, those after it have not."""
    errors = []
    for problem in trees():
        paid = penalties("k3", problem)
        errors.append(apart(token_field(problem, paid.cumsum(-1) - paid), 0.0))
        errors.append(differs(token_field(problem, later(paid)), 0.0))
    yield from each_form(worst(errors))


@claim("FRPO-4.1-analogue")
def sampled_penalties_average_to_divergences() -> Iterator[Found]:
    """E sum_t f(u_t) = the divergences of the visited prefixes, added up."""
    errors = []
    for problem in (*bandits(), *trees()):
        for f in GENERATORS:
            sampled = float(mean(terms(problem).p, penalties(f, problem).sum(-1)))
            errors.append(apart(sampled, visited_divergence(f, problem, problem.logits)))
    yield from each_form(worst(errors))


def through_visits(f: str, problem: Problem) -> torch.Tensor:
    """The gradient less what remains of it with the visits of all prefixes held fixed, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    (fixed,) = torch.autograd.grad(visited_divergence(f, problem, theta), theta)
    return penalty_gradient(f, problem) - fixed


@claim("FRPO-4.1-future")
def the_effect_on_later_prefixes_starts_one_token_later() -> Iterator[Found]:
    """Through the distribution of later prefixes: the sum over j > i. The local penalty misses j >= i."""
    printed, corrected = [], []
    for problem in trees():
        for f in DIVERGENCES:
            paid = penalties(f, problem)
            printed.append(relative(token_field(problem, sum_from_here(paid)), through_visits(f, problem)))
            corrected.append(apart(token_field(problem, later(paid)), through_visits(f, problem)))
            missed = penalty_gradient(f, problem) - token_field(problem, local_slopes(f, problem))
            corrected.append(apart(token_field(problem, sum_from_here(paid)), missed))
    k3 = [
        relative(token_field(p, sum_from_here(penalties("k3", p))), through_visits("k3", p)) for p in trees()
    ]
    yield from each_form(worst(printed), worst(corrected), min_k3=min(k3), max_k3=max(k3))


@claim("FRPO-4.1-bandit")
def the_two_terms_stay_two_in_a_bandit() -> Iterator[Found]:
    """-f'(u) u and f(u) are two gradients there as well, and the divergence has their sum."""
    printed, corrected = [], []
    for problem in bandits():
        for f in DIVERGENCES:
            local = token_field(problem, local_slopes(f, problem))
            by_score = token_field(problem, penalties(f, problem))
            printed.append(relative(local, by_score))
            corrected.append(apart(local + by_score, penalty_gradient(f, problem)))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    differentiated = float(token_field(small, local_slopes("k3", small))[0, 0])
    whole = float(penalty_gradient("k3", small)[0, 0])
    yield from each_form(worst(printed), worst(corrected), differentiated=differentiated, whole=whole)


@claim("FRPO-eq4.5")
def weight_for_the_reverse_kl() -> Iterator[Found]:
    """A - beta sum of log-ratios from the token on: the gradient of 2 arcsin sqrt p - beta KL."""
    errors = []
    for problem in graded():
        weight = every_token(problem, standardized(problem, problem.rewards)) - BETA * sum_from_here(
            terms(problem).log_ratio
        )
        errors.append(apart(token_field(problem, weight), decoupled_gradient(problem, BETA)))
        dropped = regularizer("k1", problem) - sum_from_here(terms(problem).log_ratio)
        errors.append(apart(dropped, problem.completion_mask))
    yield from each_form(worst(errors))


def _reverse_k3(problem: Problem) -> torch.Tensor:
    """-log u_i + sum over j > i of (u_j - log u_j - 1)."""
    return terms(problem).log_ratio + later(penalties("k3", problem))


@claim("FRPO-eq4.6")
def weight_for_k3() -> Iterator[Found]:
    """A - beta(-log u_i + later penalties): again the gradient of 2 arcsin sqrt p - beta KL."""
    errors = []
    for problem in graded():
        weight = every_token(problem, standardized(problem, problem.rewards)) - BETA * _reverse_k3(problem)
        errors.append(apart(token_field(problem, weight), decoupled_gradient(problem, BETA)))
        errors.append(apart(penalty_gradient("k3", problem), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("FRPO-4.3-reg-k3")
def coefficients_of_the_reverse_k3() -> Iterator[Found]:
    """Locally 1 - u_i; in the objective -log u_i and the later penalties, sample by sample."""
    errors = []
    for problem in trees():
        u = (-terms(problem).log_ratio).exp()
        errors.append(apart(local_slopes("k3", problem), (1 - u) * problem.completion_mask))
        errors.append(apart(regularizer("k3", problem), _reverse_k3(problem)))
        errors.append(apart(token_field(problem, _reverse_k3(problem)), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("FRPO-4.3-reg-forward")
def coefficients_of_the_forward_k3() -> Iterator[Found]:
    """1 - u_i and the later penalties u log u - u + 1, sample by sample."""
    errors = []
    for problem in trees():
        u = (-terms(problem).log_ratio).exp()
        printed = (1 - u) * problem.completion_mask + later(penalties("forward", problem))
        errors.append(apart(regularizer("forward", problem), printed))
        errors.append(apart(token_field(problem, printed), penalty_gradient("forward", problem)))
    yield from each_form(worst(errors))
