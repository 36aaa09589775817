"""Section 3.1 and 3.2: what dividing by the deviation of the group makes of the reward (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, relative, turned, violation, worst
from kl_book.ledger.claims.ground.groups import standardized_or_zero
from kl_book.ledger.claims.ground.sequences import cumulative_gradients, jacobian, sum_from_here
from kl_book.ledger.claims.ground.sums import exact, kl_gradient, mean, terms
from kl_book.ledger.claims.ground.updates import (
    UTILITIES,
    arcsine_gradient,
    decoupled_gradient,
    deviation,
    every_token,
    graded,
    graded_pairs,
    penalty_gradient,
    population_mean,
    slope,
    standardized,
    standardized_update,
    token_field,
    utility_gradient,
)
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_companion.tabular import Problem
from kl_companion.tabular.groups import group_update

BETA = 0.1
GROUP = 5  # answers per prompt in the source's experiments (tables 6 and 7)
SIZES = (GROUP, 20, 80, 320)


def _three_grades() -> Problem:
    """Three answers with rewards 0, 1 and 3."""
    problem = two_policies((0.2, 0.3, 0.5), (0.3, 0.3, 0.4))
    return problem._replace(rewards=torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))


def _one_right(p: float) -> Problem:
    """Two answers, the first of them right, with this probability."""
    right = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return two_policies((p, 1 - p), (0.5, 0.5))._replace(rewards=right)


@claim("FRPO-abs-utility")
def group_normalization_gives_a_utility() -> Iterator[Found]:
    """For rewards 0/1 it does; for three rewards the update is the gradient of no function at all."""
    inside = [
        apart(standardized_update(p, p.rewards), arcsine_gradient(p)) for p in (*graded_pairs(), *graded())
    ]
    slopes = jacobian(lambda p: standardized_update(p, p.rewards), _three_grades())
    asymmetry = relative(slopes, slopes.T)
    yield from each_form(worst([asymmetry, *inside]), inside=worst(inside), asymmetry=asymmetry)


@claim("FRPO-P3.1")
def standardized_binary_rewards_follow_the_arcsine() -> Iterator[Found]:
    """E[(r - p)/sqrt(p(1 - p)) score] = gradient of 2 arcsin sqrt p, on bandits and trees."""
    worlds = (*graded_pairs(), *graded())
    yield from each_form(worst(apart(standardized_update(p, p.rewards), arcsine_gradient(p)) for p in worlds))


def _uneven() -> tuple[Problem, ...]:
    """Trees whose answers differ in length."""
    return tuple(p for p in graded() if len(p.completion_mask.sum(-1).unique()) > 1)


@claim("FRPO-P3.1-objective")
def the_printed_loss_divides_by_the_length() -> Iterator[Found]:
    """Eq (3.1) averages over the tokens of an answer: where lengths differ it has another direction."""
    printed, corrected = [], []
    for problem in _uneven():
        t = terms(problem)
        advantage = standardized(problem, problem.rewards)
        length = problem.completion_mask.sum(-1)
        printed.append(
            turned(token_field(problem, every_token(problem, advantage / length)), arcsine_gradient(problem))
        )
        whole = mean(t.p, advantage[:, None, None] * t.score)
        corrected.append(apart(whole, arcsine_gradient(problem)))
    yield from each_form(worst(printed), worst(corrected), min_printed=min(printed), max_printed=max(printed))


@claim("FRPO-3.2-score")
def the_standardized_advantage_is_the_score_of_the_arcsine() -> Iterator[Found]:
    """(r - p)/sqrt(p(1 - p)) = l'(p)(r - p), and with it theorem 4.1 gives the gradient of its objective."""
    errors = []
    for problem in graded():
        p, r = population_mean(problem, problem.rewards), problem.rewards
        advantage = slope("2 arcsin sqrt(p)", p) * (r - p)
        errors.append(apart(advantage, (r - p) / deviation(problem, r)))
        weight = every_token(problem, advantage) - BETA * sum_from_here(terms(problem).log_ratio)
        errors.append(apart(token_field(problem, weight), decoupled_gradient(problem, BETA)))
    yield from each_form(worst(errors))


def _whole_gradient(problem: Problem, utility: str) -> torch.Tensor:
    """Gradient of a utility of E[r] minus beta times the mean of the log-ratios, in one piece."""
    return exact(
        lambda p, q: UTILITIES[utility](p.exp() @ problem.rewards) - BETA * (p.exp() @ (p - q)), problem
    )[1]


@claim("FRPO-1-gain")
def the_reward_has_a_gain_and_the_penalty_none() -> Iterator[Found]:
    """The gradient of l(E r) - beta E cost is l'(p) grad p - beta grad E cost, for every l tried."""
    errors = []
    for problem in graded():
        p, plain = population_mean(problem, problem.rewards), utility_gradient(problem)
        cost = penalty_gradient("k1", problem)
        for name in UTILITIES:
            found = _whole_gradient(problem, name)
            errors.append(apart(found, slope(name, p) * plain - BETA * cost))
    yield from each_form(worst(errors), number=", ".join(UTILITIES))


def _in_groups(problem: Problem, n: int) -> torch.Tensor:
    """Expected update of rewards that are standardized in groups of n, [rows, vocab]."""
    return group_update(lambda drawn: standardized_or_zero(problem.rewards[drawn]), problem, n)


@claim("FRPO-eq5.1")
def statistics_of_the_group_estimate_those_of_the_prompt() -> Iterator[Found]:
    """The KL part is unbiased for every size; the reward part has the direction, in the limit the length."""
    errors = [apart(mean(terms(p).p, cumulative_gradients(p)), kl_gradient(p)) for p in graded()]
    shares = {}
    for p in (0.1, 0.5):
        problem, lengths = _one_right(p), []
        for n in SIZES:
            found = _in_groups(problem, n)
            errors.append(turned(found, arcsine_gradient(problem)))
            lengths.append(float(found.norm() / arcsine_gradient(problem).norm()))
        gaps = [abs(x - 1) for x in lengths]
        errors += [less(after, before) for before, after in pairwise(gaps)]
        errors.append(violation(gaps[-1] - 0.02))
        shares[p] = lengths[0]
    said = " and ".join(f"{share:.0%} at p = {p}" for p, share in shares.items())
    yield from each_form(worst(errors), GROUP=GROUP, said=said, SIZES_1=SIZES[-1])
