"""Sections 3.2, 4.2 and 5.1: the KL in the reward, before the rewards are standardized (yao2026future).

Statistics are those of the population: p is the expected reward, D the summed log-ratio, K its mean, s the
deviation of r - beta D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import updates as u
from kl_book.ledger.claims.ground.errors import STRICT, relative, turned
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import jacobian, sum_from_here
from kl_book.ledger.claims.ground.updates import deviation, regularized_gradient
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem

BETA = 0.1
all_graded = each(u.graded_pairs, u.graded)


def in_the_reward(p: Problem, beta: float = BETA) -> torch.Tensor:
    """The update from r - beta D, standardized."""
    return u.standardized_update(p, u.shaped(p, beta))


def _spread(p: Problem) -> float:
    """s."""
    return deviation(p, u.shaped(p, BETA))


@claim("FRPO-1-linear", over=each(u.graded_trees))
def without_normalization_reward_and_kl_are_one_reward(w: Enumeration) -> Iterator[Found]:
    """r - beta D as one reward, and the KL from each token on beside the reward, have the same gradient."""
    p, ratio, gradient = w.problem, w.t.log_ratio, regularized_gradient(w.problem, BETA)
    rewards = u.every_token(p, w.R)
    yield same(w.Es(u.shaped(p, BETA)), gradient)
    yield same(u.token_field(p, rewards - BETA * sum_from_here(ratio)), gradient)
    yield differs(u.token_field(p, rewards - BETA * ratio), gradient)


@claim("FRPO-1-fuse", over=each(u.graded))
def a_bent_utility_and_the_kl_do_not_commute(w: Enumeration) -> Iterator[Found]:
    """l(E[r - beta D]) and l(E r) - beta E[D] differ, for the arcsine by more than the KL itself."""
    p = w.E(w.R)
    beta = float(p) / (10 * w.kl)  # the argument of the arcsine stays within 0 and 1
    fused = w.E(u.shaped(w.problem, beta))
    yield same(fused, p - beta * w.kl)
    arcsine, log = (
        float(u.UTILITIES[name](p) - u.UTILITIES[name](fused)) for name in ("2 arcsin sqrt(p)", "log p")
    )
    yield differs(arcsine, beta * w.kl)
    yield differs(log, beta * w.kl)
    yield at_most(2 * beta * w.kl, arcsine)


@claim("FRPO-1-onescalar", over=each(lambda: (u.graded()[0], u.graded_trees()[0], u.graded_trees()[2])))
def one_number_for_every_token(w: Enumeration) -> Iterator[Found]:
    """In every group the mean and the deviation change; the KL to go differs from token to token."""
    p, index = groups(w.problem, 3)
    ratio, rewards, with_kl = w.l[index], w.R[index], u.shaped(w.problem, BETA)[index]
    moved, varied = with_kl.mean(-1) - rewards.mean(-1), ratio.std(-1) > TOLERANCE
    yield same(p @ moved, -BETA * w.kl)
    yield at_most(STRICT, moved.abs()[varied])
    wider = with_kl.std(-1, correction=0) - rewards.std(-1, correction=0)
    yield at_most(STRICT, wider.abs()[varied])
    if w.problem.rows.shape[1] > 1:
        to_go = sum_from_here(w.t.log_ratio)[w.problem.completion_mask[:, 1] > 0]
        yield at_most(STRICT, (to_go[:, 0] - to_go[:, 1]).abs())
    advantage = standardized_or_zero(with_kl)  # one number per answer
    by_answer = torch.einsum("gi,girv->grv", advantage, w.s[index])
    yield same(by_answer, torch.einsum("gi,gitrv->grv", advantage, w.t.scores[index]))


@claim("FRPO-P3.2-objective")
def there_is_no_objective() -> Iterator[Found]:
    """The derivatives of the update are not symmetric: it is the gradient of no function."""
    shares = []
    for p in u.graded():
        slopes = jacobian(in_the_reward, p)
        shares.append(relative(slopes, slopes.T))
        yield same(in_the_reward(p), regularized_gradient(p, BETA) / _spread(p), "corrected")
    yield printed(max(shares))
    yield numbers(first=shares[0], worlds=len(shares), least=min(shares), most=max(shares))


def _difference_of_log_ratios(w: Enumeration) -> float:
    """Of two answers: log-ratio of the right one minus that of the wrong one."""
    right = w.R.argmax()
    return float(w.l[right] - w.l[1 - right])


def _bent_slope(w: Enumeration) -> float:
    """Slope in p of 2 arcsin sqrt p + beta KL, with two answers of which one is right."""
    return 1 / deviation(w.problem, w.R) + BETA * _difference_of_log_ratios(w)


@claim("FRPO-C1-linear")
def only_beside_a_straight_utility() -> Iterator[Found]:
    """The update is that of l(p) - beta KL for the slope 1/s and s = 1 alone: of no policy, of no bent l."""
    widths = []
    for w in each(u.graded)():
        p, update = w.problem, in_the_reward(w.problem)
        widths.append(_spread(p))
        shares = u.coordinates(update, u.utility_gradient(p), w.d_kl)
        yield same(shares, torch.tensor([1.0, -BETA], dtype=torch.float64) / widths[-1])
        for slope in (1.0, 1 / widths[-1], 1 / deviation(p, w.R)):
            yield differs(update, slope * u.utility_gradient(p) - BETA * w.d_kl)
    yield numbers(least=min(widths), most=max(widths), worlds=len(widths))
    policies = [x for w in each(u.graded_pairs)() for x in (w, w.replace(logits=w.problem.logits / 2))]
    bent = [_bent_slope(x) for x in policies]
    for w, slope in zip(policies, bent, strict=True):
        yield same(in_the_reward(w.problem), slope * u.utility_gradient(w.problem) - BETA * w.d_kl)
    yield numbers(least_slope=min(bent), most_slope=max(bent))


def _cancelling(p: float) -> Enumeration:
    """Two answers whose log-ratios differ by 2 / (beta std(r)), at beta = 1."""
    ahead = math.log(p / (1 - p)) - 2 / math.sqrt(p * (1 - p))
    q = 1 / (1 + math.exp(-ahead))
    return two((p, 1 - p), (q, 1 - q)).replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))


@claim("FRPO-P3.2-nonvanishing")
def the_discrepancy_stays() -> Iterator[Found]:
    """The two updates differ if the gradients are not parallel; with two answers they can agree."""
    sizes = []
    for w in each(u.graded)():
        p, spread, plain = w.problem, _spread(w.problem), deviation(w.problem, w.R)
        update, gradient = in_the_reward(p), u.decoupled_gradient(p, BETA)
        by_reward, by_kl = u.coordinates(update - gradient, u.utility_gradient(p), w.d_kl)
        yield same(by_reward, 1 / spread - 1 / plain)
        yield same(by_kl, BETA - BETA / spread)
        yield at_most(plain, 0.5)
        yield differs(update, gradient)
        sizes.append(relative(update, gradient))
    one = _cancelling(0.5)
    entry = in_the_reward(one.problem, 1.0)[0, 0]
    yield same(in_the_reward(one.problem, 1.0), u.decoupled_gradient(one.problem, 1.0))
    yield numbers(ahead=_difference_of_log_ratios(one), entry=entry)
    yield numbers(worlds=len(sizes), least=min(sizes), most=max(sizes))


@claim("FRPO-3.2-structural")
def no_constant_coefficient_repairs_it() -> Iterator[Found]:
    """Beside l(p) - beta KL the direction is wrong, and right for the coefficient beta / sqrt(p(1 - p))."""
    needed = []
    for w in each(u.graded)():
        p, update = w.problem, in_the_reward(w.problem)
        by_reward, by_kl = u.coordinates(update, u.arcsine_gradient(p), w.d_kl)
        effective = float(-by_kl / by_reward)
        yield same(effective, BETA / deviation(p, w.R))
        yield differs(effective, BETA)
        yield less(0.0, turned(update, u.decoupled_gradient(p, BETA)))
        yield printed(turned(update, regularized_gradient(p, BETA)))
        needed.append(effective)
    yield differs(max(needed), min(needed))
    yield numbers(least=min(needed), most=max(needed))


@claim("FRPO-5.1-explains")
def the_proposition_predicts_no_collapse() -> Iterator[Found]:
    """In the limit of large groups, the proposition's own, the update always raises E[r] - beta KL."""
    raised, lengths = [], []
    for w in all_graded():
        update, gradient = in_the_reward(w.problem), regularized_gradient(w.problem, BETA)
        raised.append(float((update * gradient).sum()) > 0)
        yield same(update * _spread(w.problem), gradient, "corrected")
        lengths.append(float(update.norm() / gradient.norm()))
    yield printed(share_of_cases(raised))
    yield numbers(worlds=len(raised), least=min(lengths), most=max(lengths))


@claim("FRPO-4.1-rescaled")
def the_scale_is_that_of_the_shaped_reward() -> Iterator[Found]:
    """What is put into the reward is divided by the deviation of the sum, not by that of the reward."""
    shares, ratios = [], []
    for w in all_graded():
        p, plain, gradient = w.problem, deviation(w.problem, w.R), regularized_gradient(w.problem, BETA)
        shares.append(relative(in_the_reward(p), gradient / plain))
        yield same(in_the_reward(p), gradient / _spread(p), "corrected")
        ratios.append(plain / _spread(p))
    yield printed(max(shares))
    yield numbers(least=min(ratios), most=max(ratios), off=max(shares))


@claim("FRPO-D1-display", over=all_graded)
def the_update_and_the_variance_of_the_shaped_reward(w: Enumeration) -> Iterator[Found]:
    """E[A score] = grad(p - beta K) / s, and s^2 = p(1 - p) - 2 beta Cov + beta^2 Var."""
    p, spread = w.E(w.R), _spread(w.problem)
    yield same(in_the_reward(w.problem), regularized_gradient(w.problem, BETA) / spread)
    covariance, variance = w.E(w.R * w.l) - p * w.kl, w.E(w.l**2) - w.kl**2
    yield same(spread**2, p * (1 - p) - 2 * BETA * covariance + BETA**2 * variance)
