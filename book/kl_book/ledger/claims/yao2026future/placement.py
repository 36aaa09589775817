"""Sections 3.2, 4.2 and 5.1: the KL in the reward, before the rewards are standardized (yao2026future).

Statistics are those of the population: p is the expected reward, D the summed log-ratio, K its mean, s the
deviation of r - beta D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, turned, worst
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import jacobian, sum_from_here
from kl_book.ledger.claims.ground.sums import (
    exact,
    field,
    kl_gradient,
    log_ratio,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.updates import (
    UTILITIES,
    arcsine_gradient,
    coordinates,
    decoupled_gradient,
    deviation,
    every_token,
    graded,
    graded_pairs,
    graded_trees,
    population_mean,
    regularized_gradient,
    shaped,
    standardized_update,
    token_field,
    utility_gradient,
)
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem

BETA = 0.1


def in_the_reward(problem: Problem, beta: float = BETA) -> torch.Tensor:
    """The update from r - beta D, standardized."""
    return standardized_update(problem, shaped(problem, beta))


@claim("FRPO-1-linear")
def without_normalization_reward_and_kl_are_one_reward() -> Iterator[Found]:
    """r - beta D as one reward, and the KL from each token on beside the reward, have the same gradient."""
    errors = []
    for problem in graded_trees():
        wanted, ratio = regularized_gradient(problem, BETA), terms(problem).log_ratio
        to_go = every_token(problem, problem.rewards) - BETA * sum_from_here(ratio)
        own_alone = every_token(problem, problem.rewards) - BETA * ratio
        errors += [apart(field(shaped(problem, BETA), problem), wanted)]
        errors += [
            apart(token_field(problem, to_go), wanted),
            differs(token_field(problem, own_alone), wanted),
        ]
    yield from each_form(worst(errors))


@claim("FRPO-1-fuse")
def a_bent_utility_and_the_kl_do_not_commute() -> Iterator[Found]:
    """l(E[r - beta D]) and l(E r) - beta E[D] differ, for the arcsine by more than the KL itself."""
    errors = []
    for problem in graded():
        p, kl = population_mean(problem, problem.rewards), exact(reverse_kl, problem)[0]
        beta = p / (10 * kl)  # the argument of the arcsine stays within 0 and 1
        fused = torch.tensor(population_mean(problem, shaped(problem, beta)), dtype=torch.float64)
        errors.append(apart(fused, p - beta * kl))
        for name in ("2 arcsin sqrt(p)", "log p"):
            utility = UTILITIES[name]
            apart_from_it = float(utility(torch.tensor(p, dtype=torch.float64)) - utility(fused))
            errors.append(differs(apart_from_it, beta * kl))
            if name != "log p":
                errors.append(less(2 * beta * kl, apart_from_it, by=0.0))
    yield from each_form(worst(errors))


@claim("FRPO-1-onescalar")
def one_number_for_every_token() -> Iterator[Found]:
    """In every group the mean and the deviation change; the KL to go differs from token to token."""
    errors = []
    for problem in (graded()[0], graded_trees()[0], graded_trees()[2]):
        p, index = groups(problem, 3)
        ratio, rewards = log_ratio(problem)[index], problem.rewards[index]
        with_kl = rewards - BETA * ratio
        moved = with_kl.mean(-1) - rewards.mean(-1)
        errors.append(apart((p * moved).sum(), -BETA * exact(reverse_kl, problem)[0]))
        varied = ratio.std(-1) > TOLERANCE
        wider = (with_kl.std(-1, correction=0) - rewards.std(-1, correction=0)).abs()[varied]
        errors += [differs(0.0, float(moved.abs()[varied].min())), differs(0.0, float(wider.min()))]
        if problem.rows.shape[1] > 1:
            to_go = sum_from_here(terms(problem).log_ratio)[index]
            apart_in_answer = (to_go[..., 0] - to_go[..., 1])[problem.completion_mask[index][..., 1] > 0]
            errors.append(differs(0.0, float(apart_in_answer.abs().min())))
        advantage = standardized_or_zero(with_kl)  # one number per answer
        whole = torch.einsum("gi,girv->grv", advantage, terms(problem).score[index])
        by_token = torch.einsum("gi,gitrv->grv", advantage, terms(problem).scores[index])
        errors.append(apart(whole, by_token))
    yield from each_form(worst(errors))


@claim("FRPO-P3.2-objective")
def there_is_no_objective() -> Iterator[Found]:
    """The derivatives of the update are not symmetric: it is the gradient of no function."""
    printed, corrected = [], []
    for problem in graded():
        slopes = jacobian(lambda there: in_the_reward(there), problem)
        printed.append(relative(slopes, slopes.T))
        spread = deviation(problem, shaped(problem, BETA))
        corrected.append(apart(in_the_reward(problem), regularized_gradient(problem, BETA) / spread))
    yield from each_form(
        worst(printed),
        worst(corrected),
        BETA=BETA,
        printed_0=printed[0],
        number=len(graded()),
        min_printed=min(printed),
        max_printed=max(printed),
    )


def _difference_of_log_ratios(problem: Problem) -> float:
    """Of two answers: log-ratio of the right one minus that of the wrong one."""
    right = problem.rewards.argmax()
    return float(log_ratio(problem)[right] - log_ratio(problem)[1 - right])


def _bent_slope(problem: Problem) -> float:
    """Slope in p of 2 arcsin sqrt p + beta KL, with two answers of which one is right."""
    ahead = _difference_of_log_ratios(problem)
    return 1 / deviation(problem, problem.rewards) + BETA * ahead


@claim("FRPO-C1-linear")
def an_affine_utility_is_neither_needed_nor_enough() -> Iterator[Found]:
    """With two answers the update is the gradient of a bent utility minus the KL; an affine one is not it."""
    against, slopes = [], []
    for problem in graded_pairs():
        policies = [problem, problem._replace(logits=problem.logits / 2)]
        bent = [_bent_slope(there) for there in policies]
        gaps = [
            apart(in_the_reward(p), by * utility_gradient(p) - BETA * kl_gradient(p))
            for p, by in zip(policies, bent, strict=True)
        ]
        against.append(max(gaps) <= TOLERANCE and differs(*bent) == 0)
        slopes += bent
    corrected = []
    for problem in graded():
        spread = deviation(problem, shaped(problem, BETA))
        found = coordinates(in_the_reward(problem), utility_gradient(problem), kl_gradient(problem))
        corrected += [apart(found[0], 1 / spread), apart(found[1], -BETA / spread)]
    widths = [deviation(p, shaped(p, BETA)) for p in graded()]
    yield from each_form(
        share_of_cases(against),
        worst(corrected),
        min_slopes=min(slopes),
        max_slopes=max(slopes),
        min_widths=min(widths),
        max_widths=max(widths),
        number_of_widths=len(widths),
    )


def _cancelling() -> tuple[Problem, ...]:
    """Two answers whose log-ratios differ by 2 / (beta std(r)), at beta = 1."""
    made = []
    for p in (0.2, 0.5, 0.8):
        ahead = math.log(p / (1 - p)) - 2 / math.sqrt(p * (1 - p))
        q = 1 / (1 + math.exp(-ahead))
        problem = two_policies((p, 1 - p), (q, 1 - q))
        made.append(problem._replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64)))
    return tuple(made)


@claim("FRPO-P3.2-nonvanishing")
def the_discrepancy_can_vanish() -> Iterator[Found]:
    """With two answers it vanishes where beta times the difference of the log-ratios is 2 / std(r)."""
    tried = [(p, 1.0) for p in _cancelling()] + [(p, BETA) for p in (*graded_pairs(), *graded())]
    gaps = [apart(in_the_reward(p, b), decoupled_gradient(p, b)) for p, b in tried]
    corrected, sizes = [], []
    for problem in graded():
        spread, plain = deviation(problem, shaped(problem, BETA)), deviation(problem, problem.rewards)
        gap = in_the_reward(problem) - decoupled_gradient(problem, BETA)
        found = coordinates(gap, utility_gradient(problem), kl_gradient(problem))
        corrected += [apart(found[0], 1 / spread - 1 / plain), apart(found[1], BETA - BETA / spread)]
        corrected.append(less(plain, 0.5, by=0.0))
        sizes.append(relative(in_the_reward(problem), decoupled_gradient(problem, BETA)))
    one = _cancelling()[1]
    yield from each_form(
        share_of_cases(gap <= TOLERANCE for gap in gaps),
        worst(corrected),
        difference_of_log_ratios_one=_difference_of_log_ratios(one),
        float=float(in_the_reward(one, 1.0)[0, 0]),
        number_of_sizes=len(sizes),
        min_sizes=min(sizes),
        max_sizes=max(sizes),
        BETA=BETA,
    )


@claim("FRPO-3.2-structural")
def no_constant_coefficient_repairs_it() -> Iterator[Found]:
    """Beside l(p) - beta KL the direction is wrong, and right for the coefficient beta / sqrt(p(1 - p))."""
    errors, needed, turns = [], [], []
    for problem in graded():
        found = coordinates(in_the_reward(problem), arcsine_gradient(problem), kl_gradient(problem))
        sigma = deviation(problem, problem.rewards)
        effective = float(-found[1] / found[0])
        errors += [apart(effective, BETA / sigma), differs(effective, BETA)]
        errors.append(less(0.0, turned(in_the_reward(problem), decoupled_gradient(problem, BETA))))
        turns.append(turned(in_the_reward(problem), regularized_gradient(problem, BETA)))
        needed.append(effective)
    errors += [differs(max(needed), min(needed)), worst(turns)]
    yield from each_form(worst(errors), min_needed=min(needed), max_needed=max(needed), BETA=BETA)


@claim("FRPO-5.1-explains")
def the_proposition_predicts_no_collapse() -> Iterator[Found]:
    """In the limit of large groups, the proposition's own, the update always raises E[r] - beta KL."""
    raised, corrected, lengths = [], [], []
    for problem in (*graded_pairs(), *graded()):
        found, wanted = in_the_reward(problem), regularized_gradient(problem, BETA)
        raised.append(float((found * wanted).sum()) > 0)
        corrected.append(apart(found * deviation(problem, shaped(problem, BETA)), wanted))
        lengths.append(float(found.norm() / wanted.norm()))
    yield from each_form(
        share_of_cases(raised),
        worst(corrected),
        number_of_raised=len(raised),
        BETA=BETA,
        min_lengths=min(lengths),
        max_lengths=max(lengths),
    )


@claim("FRPO-4.1-rescaled")
def the_scale_is_that_of_the_shaped_reward() -> Iterator[Found]:
    """What is put into the reward is divided by the deviation of the sum, not by that of the reward."""
    printed, corrected, ratios = [], [], []
    for problem in (*graded_pairs(), *graded()):
        wanted = regularized_gradient(problem, BETA)
        plain, spread = deviation(problem, problem.rewards), deviation(problem, shaped(problem, BETA))
        printed.append(relative(in_the_reward(problem), wanted / plain))
        corrected.append(apart(in_the_reward(problem), wanted / spread))
        ratios.append(plain / spread)
    yield from each_form(
        worst(printed),
        worst(corrected),
        BETA=BETA,
        min_ratios=min(ratios),
        max_ratios=max(ratios),
        max_printed=max(printed),
    )


@claim("FRPO-D1-display")
def the_update_and_the_variance_of_the_shaped_reward() -> Iterator[Found]:
    """E[A score] = grad(p - beta K) / s, and s^2 = p(1 - p) - 2 beta Cov + beta^2 Var."""
    errors = []
    for problem in (*graded_pairs(), *graded()):
        p, ratio = population_mean(problem, problem.rewards), log_ratio(problem)
        mean_ratio = exact(reverse_kl, problem)[0]
        spread = deviation(problem, shaped(problem, BETA))
        errors.append(apart(in_the_reward(problem), regularized_gradient(problem, BETA) / spread))
        covariance = population_mean(problem, problem.rewards * ratio) - p * mean_ratio
        variance = population_mean(problem, ratio**2) - mean_ratio**2
        errors.append(apart(spread**2, p * (1 - p) - 2 * BETA * covariance + BETA**2 * variance))
    yield from each_form(worst(errors))
