"""Appendices B, C, E and F: single estimates, standardized rewards, other placements (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, hedged, less, turned, violation, worst
from kl_book.ledger.claims.ground.estimates import Estimate, k1, k2, k3
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.positions import exact_gradient, moments, positions
from kl_book.ledger.claims.ground.sequences import sum_from_here
from kl_book.ledger.claims.ground.sums import (
    exact,
    field,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    variance,
)
from kl_book.ledger.claims.ground.updates import (
    arcsine_gradient,
    coordinates,
    decoupled_gradient,
    deviation,
    graded,
    graded_pairs,
    graded_trees,
    later,
    population_mean,
    shaped,
    slope,
    standardized,
    standardized_update,
    token_field,
)
from kl_companion.tabular import Problem, bandit

BETA = 0.1


@claim("FRPO-B1-k1grad")
def the_differentiated_k1_has_mean_zero() -> Iterator[Found]:
    """The score of the sampled token has mean zero."""
    errors = [apart(moments(k1, p)[1], 0.0) for p in positions()]
    errors += [apart(moments(k1, p)[0], exact(reverse_kl, p)[0]) for p in positions()]
    yield from each_form(worst(errors))


@claim("FRPO-B1-k2value")
def the_mean_of_k2() -> Iterator[Found]:
    """Half the variance of the log-ratio and half the square of the KL, which is not the KL."""
    errors = []
    for problem in positions():
        kl, value = exact(reverse_kl, problem)[0], moments(k2, problem)[0]
        errors.append(apart(value, (variance(terms(problem).p, log_ratio(problem)) + kl**2) / 2))
        errors.append(differs(value, kl, by=1e-8))
    yield from each_form(worst(errors))


@claim("FRPO-B1-k3grad")
def the_differentiated_k3_has_minus_the_mean_score_of_the_reference() -> Iterator[Found]:
    """-E_ref[score], the gradient of the forward KL, and not that of the reverse KL."""
    errors = []
    for problem in positions():
        found, t = moments(k3, problem)[1], terms(problem)
        errors.append(apart(found, -mean(t.ref_logp.sum(-1).exp(), t.score)))
        errors.append(apart(found, exact_gradient(problem, "forward")))
        errors.append(differs(found, kl_gradient(problem)))
    yield from each_form(worst(errors))


def _drawn_elsewhere() -> list[Problem]:
    """The fixed list of bandits, each sampled by a policy near its own."""
    found = []
    for vocab, scale, seed in product((3, 10, 100), (0.3, 1.0, 2.5), range(10)):
        problem = bandit(vocab, seed=seed, scale=scale, off_policy=True)
        nearer = problem.logits + (problem.sampled_from - problem.logits) / 4
        found.append(problem._replace(behavior_logits=nearer))
    return found


def _off(estimate: Estimate, problem: Problem) -> float:
    """How far the mean of the differentiated estimate is from the gradient of the KL."""
    return float((moments(estimate, problem)[1] - exact_gradient(problem)).norm())


@claim("FRPO-B1-k2off")
def the_bias_of_k2_with_older_samples() -> Iterator[Found]:
    """Biased, and as a rule less than k1 and k3."""
    errors, smaller = [], []
    for problem in _drawn_elsewhere():
        square, *others = (_off(estimate, problem) for estimate in (k2, k1, k3))
        errors.append(violation(1e-8 - square))
        smaller.append(square < min(others))
        own = problem._replace(behavior_logits=None)
        errors.append(apart(moments(k2, own)[1], exact_gradient(own)))
    yield from each_form(
        max(worst(errors), hedged(smaller)), sum_of_smaller=sum(smaller), number_of_smaller=len(smaller)
    )


@claim("FRPO-C.2")
def standardized_rewards_have_mean_zero_and_variance_one() -> Iterator[Found]:
    """And the square of the slope of 2 arcsin sqrt p is one over the variance of a Bernoulli mean."""
    errors = []
    for problem in (*graded_pairs(), *graded()):
        x, p = standardized(problem, problem.rewards), population_mean(problem, problem.rewards)
        errors += [abs(population_mean(problem, x)), apart(population_mean(problem, x**2), 1.0)]
        errors.append(apart(slope("2 arcsin sqrt(p)", p) ** 2 * p * (1 - p), 1.0))
        errors.append(apart(field(x, problem), arcsine_gradient(problem)))
    yield from each_form(worst(errors))


@claim("FRPO-E-current")
def the_sum_begins_with_the_own_log_ratio() -> Iterator[Found]:
    """With it the sum has the gradient of the KL, without it not."""
    errors = []
    for problem in graded_trees():
        ratio = terms(problem).log_ratio
        errors.append(apart(token_field(problem, sum_from_here(ratio)), kl_gradient(problem)))
        errors.append(differs(token_field(problem, later(ratio)), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("FRPO-F1-a-preserve")
def the_decoupled_form_leaves_the_reward_part() -> Iterator[Found]:
    """Added afterwards, the KL of an answer depends on no other answer, and the reward part is as before."""
    errors = []
    for problem in graded_trees():
        to_go = sum_from_here(terms(problem).log_ratio)
        whole = standardized_update(problem, problem.rewards) - BETA * token_field(problem, to_go)
        errors.append(apart(whole + BETA * kl_gradient(problem), arcsine_gradient(problem)))
    problem = graded_trees()[0]
    p, index = groups(problem, 2)
    alone = sum_from_here(terms(problem).log_ratio)[index] * problem.completion_mask[index]
    by_group = torch.einsum("git,gitrv->grv", alone, terms(problem).scores[index]) / 2
    errors.append(apart(mean(p, by_group), kl_gradient(problem)))
    yield from each_form(worst(errors))


def _orders(x: torch.Tensor) -> torch.Tensor:
    return (x[..., :, None] - x[..., None, :]).sign()


@claim("FRPO-F1-b-scale")
def the_kl_changes_scale_and_order() -> Iterator[Found]:
    """In groups of three: mean, deviation, and which of two answers has the larger advantage."""
    errors = []
    for problem in graded_trees()[:3]:
        p, index = groups(problem, 3)
        ratio, rewards = log_ratio(problem)[index], problem.rewards[index]
        with_kl = rewards - BETA * ratio
        moved = with_kl.mean(-1) - rewards.mean(-1)
        errors.append(apart((p * moved).sum(), -BETA * exact(reverse_kl, problem)[0]))
        errors.append(differs(with_kl.std(-1), rewards.std(-1)))
        before, after = (_orders(standardized_or_zero(x)) for x in (rewards, with_kl))
        errors.append(differs(before, after))
    yield from each_form(worst(errors), BETA=BETA)


@claim("FRPO-F1-b-sigma")
def another_deviation_breaks_the_score() -> Iterator[Found]:
    """The deviation is not sqrt(p(1 - p)), and the part of the reward is not the gradient of the arcsine."""
    errors = []
    for problem in graded():
        spread, plain = deviation(problem, shaped(problem, BETA)), deviation(problem, problem.rewards)
        errors.append(differs(spread, plain))
        found = coordinates(
            standardized_update(problem, shaped(problem, BETA)),
            arcsine_gradient(problem),
            kl_gradient(problem),
        )
        errors += [apart(found[0], plain / spread), differs(found[0], 1.0)]
    yield from each_form(worst(errors))


@claim("FRPO-F1-b-tuning")
def no_one_coefficient_repairs_all_policies() -> Iterator[Found]:
    """The coefficient that gives the right direction is beta sqrt(p(1 - p)): another for every pass rate."""
    errors, needed = [], []
    for problem in graded():
        wanted = decoupled_gradient(problem, BETA)
        right = BETA * deviation(problem, problem.rewards)
        errors.append(turned(standardized_update(problem, shaped(problem, right)), wanted))
        for other in (BETA / 10, BETA, 10 * BETA):
            found = turned(standardized_update(problem, shaped(problem, other)), wanted)
            errors.append(less(0.0, found))
        needed.append(right)
    errors.append(differs(max(needed), min(needed)))
    yield from each_form(worst(errors))


@claim("FRPO-F1-b-uniform")
def all_tokens_of_an_answer_share_the_number() -> Iterator[Found]:
    """The update of the shaped reward is that of one number per answer; the KL to go differs by token."""
    errors = []
    for problem in graded_trees():
        to_go = sum_from_here(terms(problem).log_ratio)
        both = problem.completion_mask[:, 1] > 0
        errors.append(violation(1e-6 - float((to_go[both, 0] - to_go[both, 1]).abs().min())))
        whole = log_ratio(problem)[:, None] * problem.completion_mask
        errors.append(apart(token_field(problem, whole), kl_gradient(problem)))
    yield from each_form(worst(errors))
