"""Appendix I: optimal policies under the reverse KL, the forward KL and any divergence (emapg2026)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, corrected, inside, less, printed, rises, same
from kl_book.ledger.claims.ground import best_policies as best
from kl_book.ledger.claims.ground.best_policies import Setting, not_best, reference, settings, with_kl
from kl_book.ledger.claims.ground.sums import reverse_kl, terms
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.divergences import T


@claim("EMA-eq1", over=each(bandits, trees))
def objective_and_its_coefficient(w: Enumeration) -> Iterator[Found]:
    """The KL is the policy's mean log-ratio, and the larger beta, the nearer the optimum to the anchor."""
    yield same(w.E(w.l), w.kl)
    log_q, far = best.true_reference(w.problem).log(), []
    for beta in (0.1, 0.3, 1.0, 4.0, 1e7):
        far.append(float(reverse_kl((log_q + w.R / beta).log_softmax(-1), log_q)))
    yield rises(far[::-1], by=1e-12)
    yield at_most(far[-1], 1e-12)


@claim("EMA-eq127-129", over=settings)
def optimum_with_reverse_kl(x: Setting) -> Iterator[Found]:
    """ref exp(R/beta)/Z is the best policy, and any other is beta KL(pi||pi*) worse."""
    problem, beta = x
    tilted = reference(problem) * (problem.rewards / beta).exp()
    policy, objective = tilted / tilted.sum(), with_kl("reverse", problem, beta)
    yield printed(not_best(policy, objective))
    yield same(objective(policy), beta * tilted.sum().log())
    p = terms(problem).p
    yield same(objective(policy) - objective(p), beta * reverse_kl(p.log(), policy.log()))


@claim("EMA-eq130-132", over=settings)
def optimum_with_forward_kl(x: Setting) -> Iterator[Found]:
    """beta ref / (Z* - R), with Z* from eq (131), is the best policy under the forward KL."""
    problem, beta = x
    tilts = reference(problem) / (best.z_star_solved(problem, beta) - problem.rewards)
    yield printed(not_best(beta * tilts, with_kl("forward", problem, beta)))
    yield same(tilts.sum(), 1 / beta)
    # an answer outside the reference: the formula gives it nothing, and a policy that does is better
    outside = two_policies((0.5, 0.5, 0.0), (0.5, 0.5, 0.0))._replace(rewards=best.tensor([0.0, 0.0, 5.0]))
    objective, better = with_kl("forward", outside, 1.0), best.tensor([0.1, 0.1, 0.8])
    yield less(float(objective(reference(outside))), float(objective(better)))


@claim("EMA-eq130-132+BC", over=settings)
def reward_plus_behavioral_cloning(x: Setting) -> Iterator[Found]:
    """J_f less E[R] less beta sum ref log pi is one number, whatever the policy."""
    problem, beta = x
    q, log_q = reference(problem), best.true_reference(problem).log()
    objective = with_kl("forward", problem, beta)
    for p in (terms(problem).p, q, best.best_policy("Neyman", problem, beta).policy):
        rest = objective(p) - (p * problem.rewards).sum() - beta * (q * p.log()).sum()
        yield same(rest, -beta * (log_q.exp() * log_q).sum())


@claim("EMA-eq130-132+range", over=settings)
def the_multiplier_exceeds_every_reward(x: Setting) -> Iterator[Found]:
    """Where lambda <= max R, some beta ref / (lambda - R) is negative or infinite; Z* lies above."""
    problem, beta = x
    q, r, z_star = reference(problem), problem.rewards, best.z_star_solved(problem, beta)
    levels = sorted({*r.tolist(), float(r.min()) - 1})
    for lam in (*levels, *((a + b) / 2 for a, b in itertools.pairwise(levels))):
        entries = beta * q / (lam - r)
        if entries.isfinite().all():
            yield at_most(entries.min(), 0.0)
    yield less(float(r.max()), z_star, by=1e-12)
    right = beta * q / (z_star - r)
    yield at_most(-right, 0.0)
    yield same(right.sum(), 1.0)
    yield printed(not_best(right, with_kl("forward", problem, beta)))


@claim("EMA-eq130-132+Z", over=lambda: settings()[::4])
def the_multiplier_depends_on_all_rewards(x: Setting) -> Iterator[Found]:
    """Z* is unique, moves with all rewards, and by the shares of policy^2/ref when one of them moves."""
    (problem, beta), step = x, 1e-4
    q, r, z_star = reference(problem), problem.rewards, best.z_star_solved(problem, beta)
    above = [float(r.max()) + x * beta for x in (1e-6, 1e-3, 0.1, 0.5, 1.0, 10.0)]
    yield rises([float((q / (z - r)).sum()) for z in above][::-1], by=1e-12)  # falling: one root
    yield same(best.z_star_solved(problem._replace(rewards=r + 0.7), beta), z_star + 0.7)
    policy = beta * q / (z_star - r)
    yield printed(not_best(policy, with_kl("forward", problem, beta)))
    shares = policy**2 / q / (policy**2 / q).sum()
    for one in torch.eye(len(r), dtype=torch.float64):
        moved = (problem._replace(rewards=r + sign * step * one) for sign in (1, -1))
        up, down = (best.z_star_solved(at, beta) for at in moved)
        # a central difference: its error is of the order step^2 / beta^2
        yield at_most(((up - down) / (2 * step) - (shares * one).sum()).abs(), 1e-5)
        yield less(down, up, by=1e-12)


@claim("EMA-eq136")
def objective_with_any_divergence() -> Iterator[Found]:
    """Convex f with f(1) = 0: D_f is 0 at the reference and positive elsewhere; both KLs are cases of it."""
    for c in best.cases().values():
        bend = sympy.simplify(sympy.diff(c.form.f, T, 2))
        yield printed(best.vanishing_error(c.form.f.subs(T, 1)))
        yield same(bool(bend.is_positive), True)
    beta = 2.0
    for w in each(bandits, trees)():
        q = best.true_reference(w.problem)
        for name, direction in (("Reverse KL", "reverse"), ("Forward KL", "forward")):
            objective = best.regularized(best.case(name).f, w.problem, beta)
            yield same(objective(w.p), with_kl(direction, w.problem, beta)(w.p))
        for c in best.cases().values():
            objective = best.regularized(c.f, w.problem, beta)
            yield less(0.0, float((w.p * w.R).sum() - objective(w.p)))
            yield same((q * w.R).sum(), objective(q))


@claim("EMA-eq137-138")
def optimum_with_any_divergence() -> Iterator[Found]:
    """ref (f')^{-1}((R - lambda)/beta): the optimum wherever some lambda normalizes it; else it has zeros."""
    for name in best.cases():
        for error, cut, excess in best.form_errors(name):
            yield printed(error)
            yield corrected(cut)
            yield inside(max(cut, 0.0 if excess else error))
    for problem, beta in settings():  # for Pearson the condition in numbers
        spread = float((reference(problem) * problem.rewards).sum() - problem.rewards.min())
        yield same(beta < spread, best.best_policy("Pearson", problem, beta).excess > 0, "inside")
