"""Section 2, remark 3.8, appendices B and C: policy gradients and the two KLs (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground import updates
from kl_book.ledger.claims.ground.anchors import fisher
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.positions import equal_policies
from kl_book.ledger.claims.ground.sequences import longer_trees, sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.sums import exact, field, forward_kl, reverse_kl, terms
from kl_book.ledger.claims.ground.unnormalized import BETA, OldMeasure, slopes
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import all_worlds, bandits, trees, worlds
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

DISCOUNT = 0.9
LONG = 4096  # tokens of the longest answers that the source trains on with a context of 2K


@claim("RPG-prop2.1", over=each(worlds))
def generalized_policy_gradient_theorem(w: Enumeration) -> Iterator[Found]:
    """The gradient of E[f] is E[f score + gradient of f], for f that depend on the policy and for rewards."""
    for name in ("k1", "k2", "k3"):
        f = get_estimator(name).fn
        parts = w.value(name)[:, None, None] * w.s + w.slope(name)
        yield same(w.E(parts), exact(lambda p, q, f=f: p.exp() @ f(p, q), w.problem)[1])  # type: ignore[misc]
    yield same(w.E(w.R[:, None, None] * w.s), w.d_reward)


def _step_rewards(problem: Problem) -> torch.Tensor:
    """A reward of every token that depends on its prefix and on the token, [count, length]."""
    place = problem.rows * problem.logits.shape[-1] + problem.sequences
    return (1.7 * place + 1).sin() * problem.completion_mask


def _discounted(problem: Problem, discount: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Powers of the discount, the return from every token on, and the exact gradient of the return."""
    powers = discount ** torch.arange(problem.rows.shape[1], dtype=torch.float64)
    rewards = powers * _step_rewards(problem)
    total = rewards.sum(-1)
    return powers, sum_from_here(rewards) / powers, exact(lambda p, _: p.exp() @ total, problem)[1]


@claim("RPG-2-reinforce", over=longer_trees)
def the_power_of_the_discount_factor_is_missing(problem: Problem) -> Iterator[Found]:
    """Each term of the sum needs the factor gamma^t; without it the update is not the gradient of J."""
    powers, to_go, target = _discounted(problem, DISCOUNT)
    share = relative(updates.token_field(problem, to_go), target)
    yield printed(share)
    yield same(updates.token_field(problem, powers * to_go), target, "corrected")
    _, undiscounted, target = _discounted(problem, 1.0)
    yield same(updates.token_field(problem, undiscounted), target, "inside")
    _, mild, target = _discounted(problem, 0.99)
    yield observed(share, mild=relative(updates.token_field(problem, mild), target))
    yield numbers(discount=DISCOUNT, token=LONG, factor=0.999**-LONG)


@claim("RPG-2.1-kl")
def kl_is_positive_and_not_symmetric() -> Iterator[Found]:
    """The mean log-ratio is positive, 0 for equal policies alone, and another number the other way round."""
    every = [*each(worlds)()]
    for w in every:
        yield less(0.0, w.forward)
        yield less(0.0, w.kl)
        yield same(w.E(w.l), w.kl)
    for w in each(equal_policies)():
        yield same(w.forward, 0.0)
        yield same(w.kl, 0.0)
    yield differs(max(abs(w.forward - w.kl) for w in every), 0.0)


# policies of one bump for a reference of two

OUTCOMES = torch.arange(21, dtype=torch.float64)
GAP = (OUTCOMES > 8) & (OUTCOMES < 12)


class Bump(NamedTuple):
    """Shares of a policy: between the modes of the reference, at its smaller and larger mode, E[pi_ref]."""

    gap: float
    smaller: float
    larger: float
    height: float


@cache
def _bumps() -> torch.Tensor:
    """Log-probs of policies with one bump: every center and width, [policies, outcomes]."""
    center = torch.linspace(0, 20, 41, dtype=torch.float64)[:, None, None]
    width = torch.logspace(-0.3, 1.0, 25, dtype=torch.float64)[None, :, None]
    return (-(((OUTCOMES - center) / width) ** 2) / 2).log_softmax(-1).flatten(0, 1)


def _two_modes(larger: float) -> torch.Tensor:
    """Log-probs of a reference with its modes at 5 and 15, the first of which has this share."""
    share = torch.tensor([larger, 1 - larger], dtype=torch.float64).log()[:, None]
    center = torch.tensor([5.0, 15.0], dtype=torch.float64)[:, None]
    return (share - (OUTCOMES - center) ** 2 / 2).logsumexp(0).log_softmax(-1)


def _best_bumps(larger: float) -> tuple[Bump, Bump]:
    """The policies of one bump with the least forward KL and with the least reverse KL."""
    ref, best = _two_modes(larger), []
    for kl in (forward_kl, reverse_kl):
        p = _bumps()[kl(_bumps(), ref).argmin()].exp()
        low, high = (float(p[half].sum()) for half in (OUTCOMES <= 8, OUTCOMES >= 12))
        best.append(Bump(float(p[GAP].sum()), high, low, float(p @ ref.exp())))
    return best[0], best[1]


SHARES = (0.55, 0.6, 0.7)


@claim("RPG-2.1-mode-seeking")
def reverse_kl_concentrates_on_a_mode() -> Iterator[Found]:
    """Of all policies with one bump that with the least reverse KL sits at the larger mode."""
    for larger in SHARES:
        (covering, seeking), ref = _best_bumps(larger), _two_modes(larger).exp()
        yield less(0.99, seeking.larger, by=0.0)
        yield less(seeking.gap, covering.gap)
        yield less(float(ref @ ref), seeking.height)
        yield less(covering.height, seeking.height)
    yield numbers(at_larger=_best_bumps(SHARES[0])[1].larger, share=SHARES[0])


FIRST, SECOND = 1e-3, 1e-9


def _three(*p: float) -> torch.Tensor:
    """Log-probs of three answers."""
    return torch.tensor(p, dtype=torch.float64).log()


@claim("RPG-2.1-zero-forcing")
def forward_kl_forces_no_zero() -> Iterator[Found]:
    """The reverse KL forces the zeros of the reference on the policy; the forward KL covers the support."""
    first, second = (_three(0.6 * (1 - rest), 0.4 * (1 - rest), rest) for rest in (FIRST, SECOND))
    for mass in (0.05, 0.2, 0.5):
        policy = _three(0.5 * (1 - mass), 0.5 * (1 - mass), mass)
        growth = mass * math.log(FIRST / SECOND) + (1 - mass) * math.log((1 - FIRST) / (1 - SECOND))
        forward, reverse = (float(kl(policy, second) - kl(policy, first)) for kl in (forward_kl, reverse_kl))
        yield printed(abs(forward - growth) / growth)
        yield same(reverse, growth, "corrected")
    for covering, seeking in map(_best_bumps, SHARES):
        yield less(0.2, covering.smaller, "corrected", by=0.0)
        yield less(seeking.smaller, 0.01, "corrected", by=0.0)
        yield less(seeking.gap, covering.gap, "corrected")
    covering, seeking = _best_bumps(SHARES[0])
    yield numbers(rare=SECOND, forward=forward_kl(policy, second), reverse=reverse_kl(policy, second))
    yield numbers(larger=SHARES[0], smaller=1 - SHARES[0], covering=covering.gap, seeking=seeking.gap)


@claim("RPG-2.1-shaping", over=each(all_worlds))
def the_kl_can_be_put_into_the_reward(w: Enumeration) -> Iterator[Found]:
    """With r - beta log-ratio as a constant, the score-function update is the gradient of E[R] - beta KL."""
    target = updates.regularized_gradient(w.problem, BETA)
    if w.problem.behavior_logits is None:
        to_go = updates.every_token(w.problem, w.R) - BETA * sum_from_here(w.t.log_ratio)
        yield same(w.E(w.tokens(to_go)), target)
        return
    yield same(w.E(w.times_score(w.R - BETA * w.l)), target)
    of_the_sampler = w.problem.token_logp(w.problem.sampled_from).sum(-1) - w.ref.log()
    yield observed(relative(w.E(w.times_score(w.R - BETA * of_the_sampler)), target))
    yield numbers(beta=BETA)


# remark 3.8 and appendix B: the natural gradient

STRENGTHS = (10.0, 100.0, 1000.0)  # of beta


@claim("RPG-eqB.1", over=lambda: [*bandits(), *trees()[:2]])
def the_kl_to_second_order(problem: Problem) -> Iterator[Found]:
    """At the policy itself its value and gradient vanish and its Hessian is the Fisher matrix, either way."""
    theta = problem.logits.detach()
    here = problem.token_logp(theta).sum(-1)
    for kl in (forward_kl, reverse_kl):

        def distance(flat: torch.Tensor) -> torch.Tensor:
            return kl(problem.token_logp(flat.view_as(theta)).sum(-1), here)  # noqa: B023 - called at once

        yield same(distance(theta.flatten()), 0.0)
        yield same(slopes(distance, theta.flatten()), 0.0)
        yield same(torch.autograd.functional.hessian(distance, theta.flatten()), fisher(problem))
    at_the_policy = OldMeasure(problem._replace(behavior_logits=theta))
    yield same(at_the_policy.d_objective("FKL"), updates.utility_gradient(problem))


@claim("RPG-eqB.5", over=bandits)
def the_step_of_the_local_surrogate(problem: Problem) -> Iterator[Found]:
    """With one logit fixed F has an inverse, and the step is (R_a - R_fixed) / beta by hand."""
    matrix, gradient = fisher(problem)[:-1, :-1], updates.utility_gradient(problem)[0, :-1]
    step = torch.linalg.solve(matrix, gradient) / BETA
    yield same(gradient - BETA * matrix @ step, 0.0)
    yield same(step, (problem.rewards[:-1] - problem.rewards[-1]) / BETA)
    yield same(slopes(lambda x: gradient @ x - BETA / 2 * x @ matrix @ x, step), 0.0)


def _remaining(problem: Problem, step: torch.Tensor, beta: float, *, forward: bool) -> float:
    """Gradient of E[R] - beta KL after a step, relative to that of E[R] before it.

    The KL is that between the policy before the step, held fixed, and the policy.
    """
    fixed = problem.token_logp(problem.logits).sum(-1)
    kl = forward_kl if forward else reverse_kl
    there = problem._replace(logits=problem.logits + step.view_as(problem.logits))
    left = exact(lambda p, _: p.exp() @ problem.rewards - beta * kl(p, fixed), there)[1]
    return float(left.norm() / field(problem.rewards, problem).norm())


@claim("RPG-rem3.8", over=lambda: (*bandits()[3:], *trees()))
def natural_gradient_is_the_step_of_the_local_model(problem: Problem) -> Iterator[Found]:
    """With J linear and the KL quadratic, the best step is the natural gradient over beta."""
    inverse = torch.linalg.pinv(fisher(problem), rtol=1e-10, hermitian=True)
    natural = inverse @ field(problem.rewards, problem).flatten()
    reward = updates.utility_gradient(problem).flatten()
    yield same(reward - BETA * fisher(problem) @ (natural / BETA), 0.0)
    for forward in (True, False):
        left = [_remaining(problem, natural / beta, beta, forward=forward) for beta in STRENGTHS]
        for before, after in pairwise(left):
            yield less(after, 0.2 * before + 1e-9, by=0.0)
    yield observed(reward @ natural / (reward.norm() * natural.norm()))


# baselines of a state, appendix C.1


def _baseline(problem: Problem) -> torch.Tensor:
    """A number for every prefix, at each of the tokens that follow it, [count, length]."""
    per_prefix = torch.arange(len(problem.logits)).double().cos() + 2.0
    return per_prefix[problem.rows] * problem.completion_mask


@claim("RPG-C1-baseline", over=trees)
def a_baseline_of_the_prefix_has_no_effect(problem: Problem) -> Iterator[Found]:
    """E sum b(s_t) score_t = 0, for any numbers b and for the true values of the prefixes."""
    reward = updates.every_token(problem, problem.rewards)
    value = values_of_prefixes(problem, reward)[problem.rows] * problem.completion_mask
    for b in (_baseline(problem), value):
        yield same(updates.token_field(problem, b), 0.0)
        yield same(updates.token_field(problem, reward - b), updates.utility_gradient(problem))


@claim("RPG-eqC.2", over=trees)
def the_loss_with_a_detached_advantage(problem: Problem) -> Iterator[Found]:
    """Differentiated on samples of the policy, it has minus the gradient of the expected reward."""
    advantage = updates.every_token(problem, problem.rewards) - _baseline(problem)
    leaf = terms(problem).logp.clone().requires_grad_()
    (slope,) = torch.autograd.grad(-(advantage * leaf).sum(), leaf)
    yield same(updates.token_field(problem, slope), -updates.utility_gradient(problem))
