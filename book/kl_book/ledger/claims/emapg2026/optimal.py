"""Appendix I: optimal policies under the reverse KL, the forward KL and any divergence (emapg2026)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import (
    best_policy,
    case,
    cases,
    clipped_example,
    form_errors,
    in_training,
    in_words,
    not_best,
    reference,
    regularized,
    settings,
    true_reference,
    vanishing_error,
    with_kl,
    z_star_solved,
)
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.sums import exact, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.divergences import T


@claim("EMA-eq1")
def objective_and_its_coefficient() -> Iterator[Found]:
    """The KL is the policy's mean log-ratio, and the larger beta, the nearer the optimum to the anchor."""
    errors = []
    for problem in (*bandits(), *trees()):
        t = terms(problem)
        errors.append(apart(mean(t.p, t.log_ratio.sum(-1)), exact(reverse_kl, problem)[0]))
        log_q, far = true_reference(problem).log(), []
        for beta in (0.1, 0.3, 1.0, 4.0, 1e7):
            p = (log_q + problem.rewards / beta).log_softmax(-1)
            far.append(float(reverse_kl(p, log_q)))
        errors += [less(b, a, by=1e-12) for a, b in itertools.pairwise(far)] + [violation(far[-1] - 1e-12)]
    yield from each_form(worst(errors))


@claim("EMA-eq127-129")
def optimum_with_reverse_kl() -> Iterator[Found]:
    """ref exp(R/beta)/Z is the best policy, and any other is beta KL(pi||pi*) worse."""
    errors = []
    for problem, beta in settings():
        q, r = reference(problem), problem.rewards
        z = (q * (r / beta).exp()).sum()
        policy, objective = q * (r / beta).exp() / z, with_kl("reverse", problem, beta)
        errors += [not_best(policy, objective), apart(objective(policy), beta * z.log())]
        p = terms(problem).p
        worse = beta * reverse_kl(p.log(), policy.log())
        errors.append(apart(objective(policy) - objective(p), worse))
    yield from each_form(worst(errors))


@claim("EMA-eq130-132")
def optimum_with_forward_kl() -> Iterator[Found]:
    """beta ref / (Z* - R), with Z* from eq (131), is the best policy under the forward KL."""
    errors = []
    for problem, beta in settings():
        q, r, z_star = reference(problem), problem.rewards, z_star_solved(problem, beta)
        errors.append(not_best(beta * q / (z_star - r), with_kl("forward", problem, beta)))
        errors.append(apart((q / (z_star - r)).sum(), 1 / beta))
    one = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    # an answer outside the reference: the formula gives it nothing, and a policy that does is better
    outside = two_policies((0.5, 0.5, 0.0), (0.5, 0.5, 0.0))._replace(rewards=5 * one)
    j = with_kl("forward", outside, 1.0)
    formula, better = reference(outside), torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)
    errors.append(less(float(j(formula)), float(j(better))))
    yield from each_form(worst(errors))


@claim("EMA-eq130-132+BC")
def reward_plus_behavioral_cloning() -> Iterator[Found]:
    """J_f less E[R] less beta sum ref log pi is one number, whatever the policy."""
    errors = []
    for problem, beta in settings():
        q, log_q = reference(problem), true_reference(problem).log()
        objective = with_kl("forward", problem, beta)
        for p in (terms(problem).p, q, best_policy("Neyman", problem, beta).policy):
            rest = objective(p) - (p * problem.rewards).sum() - beta * (q * p.log()).sum()
            errors.append(apart(rest, -beta * (log_q.exp() * log_q).sum()))
    yield from each_form(worst(errors))


@claim("EMA-eq130-132+range")
def the_multiplier_exceeds_every_reward() -> Iterator[Found]:
    """Where lambda <= max R, some beta ref / (lambda - R) is negative or infinite; Z* lies above."""
    errors = []
    for problem, beta in settings():
        q, r = reference(problem), problem.rewards
        levels = sorted({*r.tolist(), float(r.min()) - 1})
        for lam in (*levels, *((a + b) / 2 for a, b in itertools.pairwise(levels))):
            entries = beta * q / (lam - r)
            errors.append(violation(float(entries.min())) if entries.isfinite().all() else 0.0)
        errors.append(less(float(r.max()), z_star_solved(problem, beta), by=1e-12))
        right = beta * q / (z_star_solved(problem, beta) - r)
        errors += [violation(-float(right.min())), apart(right.sum(), 1.0)]
        errors.append(not_best(right, with_kl("forward", problem, beta)))
    yield from each_form(worst(errors))


@claim("EMA-eq130-132+Z")
def the_multiplier_depends_on_all_rewards() -> Iterator[Found]:
    """Z* is unique, moves with all rewards, and by the shares of policy^2/ref when one of them moves."""
    errors, step = [], 1e-4
    for problem, beta in settings()[::4]:
        q, r, z_star = reference(problem), problem.rewards, z_star_solved(problem, beta)
        above = [float(r.max()) + x * beta for x in (1e-6, 1e-3, 0.1, 0.5, 1.0, 10.0)]
        sums = [float((q / (z - r)).sum()) for z in above]
        errors += [less(b, a, by=1e-12) for a, b in itertools.pairwise(sums)]  # falling: one root
        errors.append(apart(z_star_solved(problem._replace(rewards=r + 0.7), beta), z_star + 0.7))
        policy = beta * q / (z_star - r)
        errors.append(not_best(policy, with_kl("forward", problem, beta)))
        shares = policy**2 / q / (policy**2 / q).sum()
        for one in torch.eye(len(r), dtype=torch.float64):
            up, down = (z_star_solved(problem._replace(rewards=r + x * step * one), beta) for x in (1, -1))
            # a central difference: its error is of the order step^2 / beta^2
            errors.append(violation(apart((up - down) / (2 * step), (shares * one).sum()) - 1e-5))
            errors.append(less(down, up, by=1e-12))
    yield from each_form(worst(errors))


@claim("EMA-eq136")
def objective_with_any_divergence() -> Iterator[Found]:
    """Convex f with f(1) = 0: D_f is 0 at the reference and positive elsewhere; both KLs are cases of it."""
    errors = []
    for c in cases().values():
        bend = sympy.simplify(sympy.diff(c.form.f, T, 2))
        errors += [vanishing_error(c.form.f.subs(T, 1)), float(not bend.is_positive)]
    for problem in (*bandits(), *trees()):
        p, q, beta = terms(problem).p, true_reference(problem), 2.0
        for name, direction in (("Reverse KL", "reverse"), ("Forward KL", "forward")):
            one, other = regularized(case(name).f, problem, beta), with_kl(direction, problem, beta)
            errors.append(apart(one(p), other(p)))
        for c in cases().values():
            charged = (p * problem.rewards).sum() - regularized(c.f, problem, beta)(p)
            free = (q * problem.rewards).sum() - regularized(c.f, problem, beta)(q)
            errors += [less(0.0, float(charged)), apart(free, 0.0)]
    yield from each_form(worst(errors))


@claim("EMA-eq137-138")
def optimum_with_any_divergence() -> Iterator[Found]:
    """ref (f')^{-1}((R - lambda)/beta): the optimum wherever some lambda normalizes it; else it has zeros."""
    printed, corrected, inside = [], [], []
    for name in cases():
        for error, cut, excess in form_errors(name):
            printed.append(error)
            corrected.append(cut)
            inside.append(max(cut, 0.0 if excess else error))
    for problem, beta in settings():  # for Pearson the condition in numbers
        spread = float((reference(problem) * problem.rewards).sum() - problem.rewards.min())
        inside.append(float((beta >= spread) == bool(best_policy("Pearson", problem, beta).excess)))
    wrong, right = clipped_example()
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        in_words_wrong=in_words(wrong),
        in_words_right=in_words(right),
        practice=in_training(),
    )
