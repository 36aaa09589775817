"""Section 2: the policy-gradient theorem, the two directions of the KL, reward shaping (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, violation, worst
from kl_book.ledger.claims.ground.off_policy import average, times_score
from kl_book.ledger.claims.ground.positions import equal_policies
from kl_book.ledger.claims.ground.sequences import longer_trees, sum_from_here
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    values,
)
from kl_book.ledger.claims.ground.updates import every_token, regularized_gradient, shaped, token_field
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, worlds
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

BETA = 0.4
DISCOUNT = 0.9
LONG = 4096  # tokens of the longest answers that the source trains on with a context of 2K


@claim("RPG-prop2.1")
def generalized_policy_gradient_theorem() -> Iterator[Found]:
    """The gradient of E[f] is E[f score + gradient of f], for f that depend on the policy and for rewards."""
    errors = []
    for problem in worlds():
        t = terms(problem)
        for name in ("k1", "k2", "k3"):
            f = get_estimator(name).fn
            inside = values(name, problem)[:, None, None] * t.score + differentiated(name, problem)
            wanted = exact(lambda p, q, f=f: p.exp() @ f(p, q), problem)[1]  # type: ignore[misc]
            errors.append(apart(mean(t.p, inside), wanted))
        rewards = problem.rewards
        wanted = exact(lambda p, _, r=rewards: p.exp() @ r, problem)[1]  # type: ignore[misc]
        errors.append(apart(mean(t.p, rewards[:, None, None] * t.score), wanted))
    yield from each_form(worst(errors))


def _step_rewards(problem: Problem) -> torch.Tensor:
    """A reward of every token that depends on its prefix and on the token, [count, length]."""
    place = problem.rows * problem.logits.shape[-1] + problem.sequences
    return (1.7 * place + 1).sin() * problem.completion_mask


def _discounted(problem: Problem, discount: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Powers of the discount factor, [length], and the return from every token on, [count, length]."""
    powers = discount ** torch.arange(problem.rows.shape[1], dtype=torch.float64)
    return powers, sum_from_here(powers * _step_rewards(problem)) / powers


def _without_the_power(problem: Problem, discount: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The printed update and the exact gradient of the discounted return, [rows, vocab] each."""
    powers, to_go = _discounted(problem, discount)
    total = (powers * _step_rewards(problem)).sum(-1)
    return token_field(problem, to_go), exact(lambda p, _: p.exp() @ total, problem)[1]


@claim("RPG-2-reinforce")
def the_power_of_the_discount_factor_is_missing() -> Iterator[Found]:
    """Each term of the sum needs the factor gamma^t; without it the update is not the gradient of J."""
    printed, corrected, inside, mild = [], [], [], []
    for problem in longer_trees():
        found, wanted = _without_the_power(problem, DISCOUNT)
        powers, to_go = _discounted(problem, DISCOUNT)
        printed.append(relative(found, wanted))
        corrected.append(apart(token_field(problem, powers * to_go), wanted))
        inside.append(apart(*_without_the_power(problem, 1.0)))
        mild.append(relative(*_without_the_power(problem, 0.99)))
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        DISCOUNT=DISCOUNT,
        min_printed=min(printed),
        max_printed=max(printed),
        max_mild=max(mild),
        LONG=LONG,
        number=0.999**-LONG,
    )


@claim("RPG-2.1-kl")
def kl_is_positive_and_not_symmetric() -> Iterator[Found]:
    """The mean log-ratio is positive, 0 for equal policies alone, and another number the other way round."""
    errors, gaps = [], []
    for problem in worlds():
        forward, reverse = exact(forward_kl, problem)[0], exact(reverse_kl, problem)[0]
        errors += [less(0.0, forward), less(0.0, reverse)]
        gaps.append(abs(forward - reverse))
        errors.append(apart(mean(terms(problem).p, log_ratio(problem)), reverse))
    for problem in equal_policies():
        errors += [apart(exact(kl, problem)[0], 0.0) for kl in (forward_kl, reverse_kl)]
    errors.append(differs(max(gaps), 0.0))
    yield from each_form(worst(errors))


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
    ref, found = _two_modes(larger), []
    for kl in (forward_kl, reverse_kl):
        p = _bumps()[kl(_bumps(), ref).argmin()].exp()
        low, high = (float(p[half].sum()) for half in (OUTCOMES <= 8, OUTCOMES >= 12))
        found.append(Bump(float(p[GAP].sum()), high, low, float(p @ ref.exp())))
    return found[0], found[1]


SHARES = (0.55, 0.6, 0.7)


@claim("RPG-2.1-mode-seeking")
def reverse_kl_concentrates_on_a_mode() -> Iterator[Found]:
    """Of all policies with one bump that with the least reverse KL sits at the larger mode."""
    errors = []
    for larger in SHARES:
        covering, seeking = _best_bumps(larger)
        ref = _two_modes(larger).exp()
        errors += [violation(0.99 - seeking.larger), less(seeking.gap, covering.gap)]
        errors += [less(float(ref @ ref), seeking.height), less(covering.height, seeking.height)]
    one = _best_bumps(SHARES[0])[1]
    yield from each_form(worst(errors), larger=one.larger, SHARES_0=SHARES[0])


FIRST, SECOND = 1e-3, 1e-9


def _reference_with(rest: float) -> torch.Tensor:
    """Log-probs of a reference of three answers that gives the last one this probability."""
    return torch.tensor([0.6 * (1 - rest), 0.4 * (1 - rest), rest], dtype=torch.float64).log()


@claim("RPG-2.1-zero-forcing")
def forward_kl_forces_no_zero() -> Iterator[Found]:
    """The reverse KL forces the zeros of the reference on the policy; the forward KL covers the support."""
    printed, corrected, prices = [], [], []
    for mass in (0.05, 0.2, 0.5):
        policy = torch.tensor([0.5 * (1 - mass), 0.5 * (1 - mass), mass], dtype=torch.float64).log()
        wanted = mass * math.log(FIRST / SECOND) + (1 - mass) * math.log((1 - FIRST) / (1 - SECOND))
        first, second = _reference_with(FIRST), _reference_with(SECOND)
        forward = float(forward_kl(policy, second) - forward_kl(policy, first))
        reverse = float(reverse_kl(policy, second) - reverse_kl(policy, first))
        printed.append(abs(forward - wanted) / wanted)
        corrected.append(apart(reverse, wanted))
        prices.append((float(forward_kl(policy, second)), float(reverse_kl(policy, second))))
    found = [_best_bumps(larger) for larger in SHARES]
    for covering, seeking in found:
        corrected += [violation(0.2 - covering.smaller), violation(seeking.smaller - 0.01)]
        corrected.append(less(seeking.gap, covering.gap))
    covering, seeking = found[0]
    yield from each_form(
        worst(printed),
        worst(corrected),
        SECOND=SECOND,
        number=prices[-1][0],
        number_2=prices[-1][1],
        SHARES_0=SHARES[0],
        number_3=1 - SHARES[0],
        gap=covering.gap,
        gap_2=seeking.gap,
    )


def _by_the_rollout(problem: Problem) -> torch.Tensor:
    """Update off-policy with log-ratios of the sampler in the reward, [rows, vocab]."""
    old = problem.token_logp(problem.sampled_from).sum(-1) - terms(problem).ref_logp.sum(-1)
    return average(times_score(problem.rewards - BETA * old, problem), problem)


@claim("RPG-2.1-shaping")
def the_kl_can_be_put_into_the_reward() -> Iterator[Found]:
    """With r - beta log-ratio as a constant, the score-function update is the gradient of E[R] - beta KL."""
    errors, stale = [], []
    for problem in worlds():
        wanted = regularized_gradient(problem, BETA)
        to_go = every_token(problem, problem.rewards) - BETA * sum_from_here(terms(problem).log_ratio)
        errors.append(apart(token_field(problem, to_go), wanted))
    for problem in sampled_elsewhere():
        wanted = regularized_gradient(problem, BETA)
        errors.append(apart(average(times_score(shaped(problem, BETA), problem), problem), wanted))
        stale.append(relative(_by_the_rollout(problem), wanted))
    yield from each_form(worst(errors), min_stale=min(stale), max_stale=max(stale), BETA=BETA)
