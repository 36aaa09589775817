"""Sections 4.1 to 4.3: the gradient of penalties of tokens, with those of later tokens (yao2026future).

A penalty is f(u) of the sampled token, u = pi_ref / pi.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, numbers, printed, same
from kl_book.ledger.claims.ground import updates as u
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.sequences import sum_from_here
from kl_book.ledger.claims.ground.sums import kl_gradient, mean, slopes, terms
from kl_book.ledger.claims.ground.updates import local_slopes, penalties, penalty_gradient, token_field
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies, worlds
from kl_companion.tabular import Problem

BETA = 0.1
DIVERGENCES = ("k1", "k3", "forward", "square")


def regularizer(f: str, p: Problem) -> torch.Tensor:
    """reg_i of eq (4.4): the penalties from the token on, and the derivative of its own, [count, length]."""
    return sum_from_here(penalties(f, p)) + local_slopes(f, p)


def _any_baseline(p: Problem) -> torch.Tensor:
    """A number for every prefix, given to its tokens, [count, length]."""
    return (1.7 * p.rows.double() + 0.3).sin() * 3


@claim("FRPO-T4.1", over=u.graded)
def gradient_of_a_utility_minus_token_penalties(p: Problem) -> Iterator[Found]:
    """For five f and three utilities, on bandits and trees with and without end-of-sequence."""
    rate = u.population_mean(p, p.rewards)
    for f, utility in product(u.GENERATORS, u.UTILITIES):
        weight = u.slope(utility, rate) * u.every_token(p, p.rewards) - _any_baseline(p)
        gradient = u.utility_gradient(p, utility) - BETA * penalty_gradient(f, p)
        yield same(token_field(p, weight - BETA * regularizer(f, p)), gradient)


@claim("FRPO-eq4.3-baseline", over=u.graded)
def a_baseline_of_the_prefix_changes_nothing(p: Problem) -> Iterator[Found]:
    """Any number per prefix has mean zero against the score of the next token."""
    yield same(token_field(p, regularizer("k3", p) - _any_baseline(p)), penalty_gradient("k3", p))


@claim("FRPO-D3-past", over=trees)
def past_penalties_drop_out(p: Problem) -> Iterator[Found]:
    """The penalties before a token have mean zero against its score, those after it have not."""
    penalty = penalties("k3", p)
    yield same(token_field(p, penalty.cumsum(-1) - penalty), 0.0)
    yield differs(token_field(p, u.later(penalty)), 0.0)


@claim("FRPO-4.1-analogue", over=worlds)
def sampled_penalties_average_to_divergences(p: Problem) -> Iterator[Found]:
    """E sum_t f(u_t) = the divergences of the visited prefixes, added up."""
    for f in u.GENERATORS:
        yield same(mean(terms(p).p, penalties(f, p).sum(-1)), u.visited_divergence(f, p, p.logits))


def through_visits(f: str, p: Problem) -> torch.Tensor:
    """The gradient less what remains of it with the visits of all prefixes held fixed, [rows, vocab]."""
    return penalty_gradient(f, p) - slopes(lambda theta: u.visited_divergence(f, p, theta), p.logits)


@claim("FRPO-4.1-future")
def the_effect_on_later_prefixes_starts_one_token_later() -> Iterator[Found]:
    """Through the distribution of later prefixes: the sum over j > i. The local penalty misses j >= i."""
    of_k3 = []
    for p, f in product(trees(), DIVERGENCES):
        penalty, effect = penalties(f, p), through_visits(f, p)
        from_here = token_field(p, sum_from_here(penalty))
        share = relative(from_here, effect)
        of_k3 += [share] if f == "k3" else []
        yield printed(share)
        yield same(token_field(p, u.later(penalty)), effect, "corrected")
        missed = penalty_gradient(f, p) - token_field(p, local_slopes(f, p))
        yield same(from_here, missed, "corrected")
    yield numbers(least=min(of_k3), most=max(of_k3))


@claim("FRPO-4.1-bandit")
def the_two_terms_stay_two_in_a_bandit() -> Iterator[Found]:
    """-f'(u) u and f(u) are two gradients there as well, and the divergence has their sum."""
    for p, f in product(bandits(), DIVERGENCES):
        local, by_score = (token_field(p, x(f, p)) for x in (local_slopes, penalties))
        yield same(local, by_score, by=relative)
        yield same(local + by_score, penalty_gradient(f, p), "corrected")
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    local, gradient = token_field(small, local_slopes("k3", small)), penalty_gradient("k3", small)
    yield numbers(local=local[0, 0], gradient=gradient[0, 0])


def _weight(p: Problem, coefficient: torch.Tensor) -> torch.Tensor:
    """The standardized reward minus beta times a coefficient, of every token, [count, length]."""
    return u.every_token(p, u.standardized(p, p.rewards)) - BETA * coefficient


@claim("FRPO-eq4.5", over=u.graded)
def weight_for_the_reverse_kl(p: Problem) -> Iterator[Found]:
    """A - beta sum of log-ratios from the token on: the gradient of 2 arcsin sqrt p - beta KL."""
    to_go = sum_from_here(terms(p).log_ratio)
    yield same(token_field(p, _weight(p, to_go)), u.decoupled_gradient(p, BETA))
    yield same(regularizer("k1", p) - to_go, p.completion_mask)


def _reverse_k3(p: Problem) -> torch.Tensor:
    """-log u_i + sum over j > i of (u_j - log u_j - 1)."""
    return terms(p).log_ratio + u.later(penalties("k3", p))


@claim("FRPO-eq4.6", over=u.graded)
def weight_for_k3(p: Problem) -> Iterator[Found]:
    """A - beta(-log u_i + later penalties): again the gradient of 2 arcsin sqrt p - beta KL."""
    yield same(token_field(p, _weight(p, _reverse_k3(p))), u.decoupled_gradient(p, BETA))
    yield same(penalty_gradient("k3", p), kl_gradient(p))


@claim("FRPO-4.3-reg-k3", over=trees)
def coefficients_of_the_reverse_k3(p: Problem) -> Iterator[Found]:
    """Locally 1 - u_i; in the objective -log u_i and the later penalties, sample by sample."""
    yield same(local_slopes("k3", p), (1 - (-terms(p).log_ratio).exp()) * p.completion_mask)
    yield same(regularizer("k3", p), _reverse_k3(p))
    yield same(token_field(p, _reverse_k3(p)), kl_gradient(p))


@claim("FRPO-4.3-reg-forward", over=trees)
def coefficients_of_the_forward_k3(p: Problem) -> Iterator[Found]:
    """1 - u_i and the later penalties u log u - u + 1, sample by sample."""
    own = (1 - (-terms(p).log_ratio).exp()) * p.completion_mask
    claimed = own + u.later(penalties("forward", p))
    yield same(regularizer("forward", p), claimed)
    yield same(token_field(p, claimed), penalty_gradient("forward", p))
