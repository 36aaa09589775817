"""Sections 1 and 1.1: the advantage, RLHF and NLHF (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import not_best, reference
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.group_objective import policy, preference_gradient, reward_update
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.sums import exact, reverse_kl
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    few_sampled_elsewhere,
    trees,
)
from kl_companion.tabular import Problem

SIZES = (2, 3, 4)
BETAS = (0.3, 1.0, 4.0)


@claim("VY-eq2")
def the_advantage_is_a_standardized_reward() -> Iterator[Found]:
    """Over its group it has mean 0 and mean square 1, and it is 0 where all rewards agree."""
    errors = []
    for problem in (*bandits()[:6], trees()[0]):
        for size in SIZES:
            rewards = problem.rewards[groups(problem, size)[1]]
            a, agree = standardized_or_zero(rewards), (rewards == rewards[:, :1]).all(-1)
            errors += [apart(a.mean(-1), 0.0), apart(a.square().mean(-1), 1.0 - agree.double())]
            gap = rewards[:, :1] - rewards[:, 1:2]
            errors.append(violation(-float((gap * (a[:, :1] - a[:, 1:2])).min())))
    yield from each_form(worst(errors))


@claim("VY-eq2-pairwise")
def the_advantage_from_pairs() -> Iterator[Found]:
    """Numerator and squared denominator of both forms are the same polynomials, for G = 2 to 5."""
    errors = []
    for size in range(2, 6):
        r = sympy.symbols(f"r1:{size + 1}")
        average = sum(r) / sympy.Integer(size)
        variance = sum((x - average) ** 2 for x in r) / size
        pairs = sum((x - y) ** 2 for x in r for y in r) / sympy.Integer(2 * size**2)
        differences = [variance - pairs]
        differences += [x - average - sum(x - y for y in r) / sympy.Integer(size) for x in r]
        errors += [float(sympy.expand(d) != 0) for d in differences]
    yield from each_form(worst(errors))


@claim("VY-eq2-invariance")
def shift_and_scale_do_not_matter() -> Iterator[Found]:
    """Advantages of 3 r - 7 are those of r, and so is the update; those of -r have the other sign."""
    errors = []
    for problem in few_sampled_elsewhere():
        for size in (2, 3):
            index, changed = groups(problem, size)[1], 3 * problem.rewards - 7
            errors.append(
                apart(standardized_or_zero(problem.rewards[index]), standardized_or_zero(changed[index]))
            )
            update = reward_update(problem, size, changed)
            errors.append(apart(update, preference_gradient(problem, size)))
    yield from each_form(worst(errors))


# section 1.1: RLHF and NLHF


def _rlhf(problem: Problem, beta: float) -> torch.Tensor:
    """Eq (4), [count]."""
    weight = reference(problem) * (problem.rewards / beta).exp()
    return weight / weight.sum()


def _not_the_best_of_rlhf(problem: Problem, beta: float, best: torch.Tensor) -> float:
    """Error of "no policy has a larger E[r] - beta KL, and the world's own loses beta KL to it"."""
    r, log_q = problem.rewards, reference(problem).log()
    value = exact(lambda p, q: p.exp() @ r - beta * reverse_kl(p, q), problem)[0]
    lost = best @ r - beta * reverse_kl(best.log(), log_q) - value
    return worst(
        (
            not_best(best, lambda p: p @ r - beta * reverse_kl(p.log(), log_q)),
            apart(lost, beta * reverse_kl(policy(problem).log(), best.log())),
        )
    )


@claim("VY-eq3")
def the_best_policy_of_rlhf() -> Iterator[Found]:
    """No policy has a larger E[r] - beta KL than ref exp(r/beta)/Z; the policy tried loses beta KL."""
    errors = []
    for problem in (*bandits(), *trees()):
        errors += [_not_the_best_of_rlhf(problem, beta, _rlhf(problem, beta)) for beta in BETAS]
    yield from each_form(worst(errors), number=", ".join(map(str, BETAS)))


@claim("VY-eq4-pooling")
def the_best_policy_is_a_logarithmic_pool() -> Iterator[Found]:
    """The product ref softmax(r)^(1/beta), normalized, is eq (4) and the best policy."""
    errors = []
    for problem in (*bandits(), *trees()):
        for beta in BETAS:
            pool = reference(problem) * problem.rewards.softmax(-1) ** (1 / beta)
            pool = pool / pool.sum()
            errors += [apart(pool, _rlhf(problem, beta)), _not_the_best_of_rlhf(problem, beta, pool)]
    yield from each_form(worst(errors))


def _comparisons(problem: Problem) -> torch.Tensor:
    """P(o > o') with a part that follows the rewards and one that goes in circles, [count, count]."""
    r, place = problem.rewards, torch.arange(len(problem.rewards), dtype=torch.float64)
    circle = torch.sin(2 * math.pi * (place[:, None] - place) / len(place))
    return torch.sigmoid(r[:, None] - r + 2 * circle)


def _mirror_descent(problem: Problem, beta: float, start: torch.Tensor, steps: int = 150) -> torch.Tensor:
    """Mirror ascent on the payoff against itself, in steps of 0.2/beta, [count]."""
    wins, log_q, log_p = _comparisons(problem), reference(problem).log(), start.log()
    for _ in range(steps):
        log_p = (0.8 * log_p + 0.2 * (log_q + wins @ log_p.exp() / beta)).log_softmax(-1)
    return log_p.exp()


def _nash_md(problem: Problem, beta: float, steps: int) -> torch.Tensor:
    """Nash-MD of Munos et al., with falling steps: from a mixture with the reference and against it."""
    wins, log_q = _comparisons(problem), reference(problem).log()
    log_p = log_q
    for step in range(steps):
        share = 2 / (step + 2)
        mixture = ((1 - share) * log_p + share * log_q).log_softmax(-1)
        log_p = (mixture + share / beta * wins @ mixture.exp()).log_softmax(-1)
    return log_p.exp()


def _payoff(problem: Problem, beta: float, p: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Eq (5) for one context."""
    log_q = reference(problem).log()
    return (
        p @ _comparisons(problem) @ other
        - beta * reverse_kl(p.log(), log_q)
        + beta * reverse_kl(other.log(), log_q)
    )


def _has_a_better_reply(problem: Problem, beta: float, p: torch.Tensor) -> float:
    """Error of "no policy has a larger payoff against p than p, and the world's own loses beta KL"."""
    value = exact(lambda a, b: a.exp() @ _comparisons(problem) @ p - beta * reverse_kl(a, b), problem)[0]
    own = p @ _comparisons(problem) @ p - beta * reverse_kl(p.log(), reference(problem).log())
    lost = apart(own - value, beta * reverse_kl(policy(problem).log(), p.log()))
    return worst((not_best(p, lambda x: _payoff(problem, beta, x, p)), lost))


@claim("VY-eq5")
def the_equilibrium_is_a_tilted_reference() -> Iterator[Found]:
    """A policy that solves the printed equation is a best reply to itself, and both payoffs add up to 1."""
    errors = []
    for problem in bandits():
        for beta in BETAS[:2]:
            p = _mirror_descent(problem, beta, policy(problem))
            tilted = reference(problem) * (_comparisons(problem) @ p / beta).exp()
            errors.append(apart(p, tilted / tilted.sum()))
            errors.append(_has_a_better_reply(problem, beta, p))
            here, q = policy(problem), reference(problem)
            errors.append(apart(_payoff(problem, beta, here, q) + _payoff(problem, beta, q, here), 1.0))
    yield from each_form(worst(errors))


@claim("VY-nlhf-unique")
def one_equilibrium_that_mirror_descent_finds() -> Iterator[Found]:
    """Between two policies the payoff's slope falls by beta times both KLs, and all starts end alike."""
    errors = []
    for problem in bandits()[3:]:
        here, q, wins = policy(problem), reference(problem), _comparisons(problem)
        there, back = (exact(f, problem)[0] for f in (reverse_kl, lambda a, b: reverse_kl(b, a)))
        for beta in BETAS[:2]:
            slopes = [wins @ x - beta * (x / q).log() for x in (here, q)]
            errors.append(apart((here - q) @ (slopes[0] - slopes[1]), -beta * (there + back)))
            one, other = (_mirror_descent(problem, beta, start) for start in (here, here.flip(0)))
            errors.append(apart(one, other))
            errors.append(_has_a_better_reply(problem, beta, one))
            left = [float(reverse_kl(one.log(), _nash_md(problem, beta, n).log())) for n in (50, 200)]
            errors += [violation(left[1] - 8 / beta**2 / 201), less(left[1], left[0] / 4, by=0.0)]
    yield from each_form(worst(errors))
