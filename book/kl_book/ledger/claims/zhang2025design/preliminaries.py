"""Section 2: the policy-gradient theorem, the two directions of the KL, reward shaping (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.off_policy import average, times_score
from kl_book.ledger.claims.ground.positions import equal_policies
from kl_book.ledger.claims.ground.sequences import longer_trees, sum_from_here
from kl_book.ledger.claims.ground.sums import exact, forward_kl, reverse_kl, terms
from kl_book.ledger.claims.ground.updates import every_token, regularized_gradient, shaped, token_field
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import all_worlds, worlds
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

BETA = 0.4
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
    share = relative(token_field(problem, to_go), target)
    yield printed(share)
    yield same(token_field(problem, powers * to_go), target, "corrected")
    _, undiscounted, target = _discounted(problem, 1.0)
    yield same(token_field(problem, undiscounted), target, "inside")
    _, mild, target = _discounted(problem, 0.99)
    yield observed(share, mild=relative(token_field(problem, mild), target))
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


@claim("RPG-2.1-shaping", over=all_worlds)
def the_kl_can_be_put_into_the_reward(problem: Problem) -> Iterator[Found]:
    """With r - beta log-ratio as a constant, the score-function update is the gradient of E[R] - beta KL."""
    target = regularized_gradient(problem, BETA)
    if problem.behavior_logits is None:
        to_go = every_token(problem, problem.rewards) - BETA * sum_from_here(terms(problem).log_ratio)
        yield same(token_field(problem, to_go), target)
        return
    yield same(average(times_score(shaped(problem, BETA), problem), problem), target)
    of_the_sampler = problem.token_logp(problem.sampled_from).sum(-1) - terms(problem).ref_logp.sum(-1)
    update = average(times_score(problem.rewards - BETA * of_the_sampler, problem), problem)
    yield observed(relative(update, target))
    yield numbers(beta=BETA)
