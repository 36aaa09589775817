"""Sections 1 and 1.1: the advantage, RLHF and NLHF (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, less, printed, same
from kl_book.ledger.claims.ground.best_policies import not_best, with_kl
from kl_book.ledger.claims.ground.group_objective import preference_gradient, reward_update
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.sums import exact, reverse_kl
from kl_book.ledger.claims.ground.updates import regularized
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, few_sampled_elsewhere, trees, worlds

BETAS = (0.3, 1.0, 4.0)


@claim("VY-eq2", over=each(lambda: (*bandits()[:6], trees()[0])))
def the_advantage_is_a_standardized_reward(w: Enumeration) -> Iterator[Found]:
    """Over its group it has mean 0 and mean square 1, and it is 0 where all rewards agree."""
    for size in (2, 3, 4):
        rewards = w.R[groups(w.problem, size)[1]]
        a, agree = standardized_or_zero(rewards), (rewards == rewards[:, :1]).all(-1)
        yield same(a.mean(-1), 0.0)
        yield same(a.square().mean(-1), 1.0 - agree.double())
        yield at_most(0.0, (rewards[:, 0] - rewards[:, 1]) * (a[:, 0] - a[:, 1]))


@claim("VY-eq2-pairwise", over=lambda: range(2, 6))
def the_advantage_from_pairs(size: int) -> Iterator[Found]:
    """Numerator and squared denominator of both forms are the same polynomials, for G = 2 to 5."""
    r = sympy.symbols(f"r1:{size + 1}")
    average = sum(r) / sympy.Integer(size)
    variance = sum((x - average) ** 2 for x in r) / size
    pairs = sum((x - y) ** 2 for x in r for y in r) / sympy.Integer(2 * size**2)
    numerators = [x - average - sum(x - y for y in r) / sympy.Integer(size) for x in r]
    yield from (printed(sympy.expand(d) != 0) for d in (variance - pairs, *numerators))


@claim("VY-eq2-invariance", over=each(few_sampled_elsewhere))
def shift_and_scale_do_not_matter(w: Enumeration) -> Iterator[Found]:
    """Advantages of 3 r - 7 are those of r, and so is the update; those of -r have the other sign."""
    changed = 3 * w.R - 7
    for size in (2, 3):
        index = groups(w.problem, size)[1]
        yield same(standardized_or_zero(w.R[index]), standardized_or_zero(changed[index]))
        yield same(reward_update(w, size, changed), preference_gradient(w, size))


# section 1.1: RLHF and NLHF


def _is_best(w: Enumeration, beta: float, best: torch.Tensor) -> Iterator[Found]:
    """No policy has a larger E[r] - beta KL, and the world's own loses beta KL to it."""
    objective = with_kl("reverse", w.problem, beta)
    yield printed(not_best(best, objective))
    lost = objective(best) - regularized(w.problem, beta)[0]
    yield same(lost, beta * reverse_kl(w.pi.log(), best.log()))


@claim("VY-eq3", "VY-eq4-pooling", over=lambda: product(each(worlds)(), BETAS))
def the_best_policy_is_a_logarithmic_pool(w: Enumeration, beta: float) -> Iterator[Found]:
    """No policy has a larger E[r] - beta KL than ref exp(r/beta) or ref softmax(r)^(1/beta), normalized."""
    tilted, pool = w.ref * (w.R / beta).exp(), w.ref * w.R.softmax(-1) ** (1 / beta)
    yield same(pool / pool.sum(), tilted / tilted.sum())
    for best in (tilted, pool):
        yield from _is_best(w, beta, best / best.sum())


def _wins(w: Enumeration) -> torch.Tensor:
    """P(o > o') with a part that follows the rewards and one that goes in circles, [count, count]."""
    place = torch.arange(len(w.R), dtype=torch.float64)
    circle = torch.sin(2 * math.pi * (place[:, None] - place) / len(place))
    return torch.sigmoid(w.R[:, None] - w.R + 2 * circle)


def _mirror_descent(w: Enumeration, beta: float, start: torch.Tensor, steps: int = 150) -> torch.Tensor:
    """Mirror ascent on the payoff against itself, in steps of 0.2/beta, [count]."""
    wins, log_q, log_p = _wins(w), w.ref.log(), start.log()
    for _ in range(steps):
        log_p = (0.8 * log_p + 0.2 * (log_q + wins @ log_p.exp() / beta)).log_softmax(-1)
    return log_p.exp()


def _nash_md(w: Enumeration, beta: float, steps: int) -> torch.Tensor:
    """Nash-MD of Munos et al., with falling steps: from a mixture with the reference and against it."""
    wins, log_q = _wins(w), w.ref.log()
    log_p = log_q
    for step in range(steps):
        share = 2 / (step + 2)
        mixture = ((1 - share) * log_p + share * log_q).log_softmax(-1)
        log_p = (mixture + share / beta * wins @ mixture.exp()).log_softmax(-1)
    return log_p.exp()


def _payoff(w: Enumeration, beta: float, p: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Eq (5) for one context."""
    costs = (reverse_kl(x.log(), w.ref.log()) for x in (p, other))
    return p @ _wins(w) @ other - beta * next(costs) + beta * next(costs)


@claim("VY-eq5", over=lambda: product(each(bandits)(), BETAS[:2]))
def the_equilibrium_is_a_tilted_reference(w: Enumeration, beta: float) -> Iterator[Found]:
    """A policy that solves the printed equation is a best reply to itself, and both payoffs add up to 1."""
    p = _mirror_descent(w, beta, w.pi)
    tilted = w.ref * (_wins(w) @ p / beta).exp()
    yield same(p, tilted / tilted.sum())
    yield from _is_best(w.replace(rewards=_wins(w) @ p), beta, p)
    yield same(_payoff(w, beta, w.pi, w.ref) + _payoff(w, beta, w.ref, w.pi), 1.0)


@claim("VY-nlhf-unique", over=lambda: product(each(*bandits()[3:])(), BETAS[:2]))
def one_equilibrium_that_mirror_descent_finds(w: Enumeration, beta: float) -> Iterator[Found]:
    """Between two policies the payoff's slope falls by beta times both KLs, and all starts end alike."""
    slopes = [_wins(w) @ x - beta * (x / w.ref).log() for x in (w.pi, w.ref)]
    back = exact(lambda a, b: reverse_kl(b, a), w.problem)[0]
    yield same((w.pi - w.ref) @ (slopes[0] - slopes[1]), -beta * (w.kl + back))
    one, other = (_mirror_descent(w, beta, start) for start in (w.pi, w.pi.flip(0)))
    yield same(one, other)
    yield from _is_best(w.replace(rewards=_wins(w) @ one), beta, one)
    at_50, at_200 = (float(reverse_kl(one.log(), _nash_md(w, beta, n).log())) for n in (50, 200))
    yield at_most(at_200, 8 / beta**2 / 201)
    yield less(at_200, at_50 / 4, by=0.0)
