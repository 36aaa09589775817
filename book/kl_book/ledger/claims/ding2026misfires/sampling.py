"""Section 3, F7, and section 5: the noise of the sampled log-ratio in a coefficient (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import (
    calibrated,
    contributions,
    mean_drift,
    mean_log_ratio,
    stale,
    surrogate_slopes,
)
from kl_book.ledger.claims.ground.errors import apart, differs, less, turned, violation, worst
from kl_book.ledger.claims.ground.groups import centered, groups, standardized_or_zero
from kl_book.ledger.claims.ground.sequences import token_kls
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
from kl_book.ledger.claims.ground.updates import binary
from kl_book.ledger.claims.ground.worlds import bandits, near, trees
from kl_companion.tabular import Problem
from kl_companion.tabular.groups import group_update

BETA = 4.0  # that of the source's main run
SIZES = (2, 3)


@claim("ZCPO-F7")
def centering_leaves_the_noise() -> Iterator[Found]:
    """Var(Delta_i - mean Delta) = (1 - 1/G) Var(Delta), above 0, and all answers have one exact KL."""
    errors, left = [], []
    for problem in bandits():
        x = log_ratio(problem)
        for n in SIZES:
            p, index = groups(problem, n)
            one = centered(x[index], "mean")[:, 0]
            errors.append(apart(variance(p, one), (1 - 1 / n) * variance(terms(problem).p, x)))
            left.append(variance(p, one))
        errors.append(apart(mean(terms(problem).p, x), exact(reverse_kl, problem)[0]))
    errors.append(violation(1e-6 - min(left)))
    yield from each_form(worst(errors))


@claim("ZCPO-F7-same")
def the_exact_kl_has_no_noise_of_its_token() -> Iterator[Found]:
    """It is one number per prefix; for answers of one token the centered coefficients are all 0."""
    errors = []
    for problem in bandits():
        exact_kl, index = mean_drift(problem), groups(problem, 2)[1]
        errors.append(apart(exact_kl, exact(reverse_kl, problem)[0]))
        errors.append(apart(centered(exact_kl[index], "mean"), 0.0))
        errors.append(differs(centered(log_ratio(problem)[index], "mean"), 0.0))
    for problem in trees():
        along = token_kls(problem, problem.logits)
        by_token = terms(problem).log_ratio
        for row in range(len(problem.logits)):
            here = (problem.rows == row) & (problem.completion_mask > 0)
            errors.append(apart(along[here], along[here][0]))
            errors.append(differs(by_token[here], by_token[here][0]))
    yield from each_form(worst(errors))


def _update(problem: Problem, drift: torch.Tensor, beta: float) -> torch.Tensor:
    """Expected update of groups of three with calibrated coefficients, [rows, vocab]."""
    return group_update(lambda i: calibrated(problem.rewards[i], drift[i], beta), problem, 3)


@claim("ZCPO-4-notunbiased")
def exact_and_sampled_coefficients_have_other_updates() -> Iterator[Found]:
    """In a bandit the exact one adds nothing; in trees neither has the gradient of the sequence KL."""
    errors, turns = [], []
    for problem in (binary(p) for p in bandits()[3:]):
        plain = _update(problem, mean_drift(problem), 0.0)
        errors.append(apart(_update(problem, mean_drift(problem), BETA), plain))
        active = _update(problem, log_ratio(problem), BETA) - plain
        errors.append(differs(active, 0.0))
    for problem in (binary(p) for p in trees()):
        plain = _update(problem, mean_drift(problem), 0.0)
        by_exact, by_sample = (
            _update(problem, x, BETA) - plain for x in (mean_drift(problem), mean_log_ratio(problem))
        )
        errors.append(differs(by_exact, by_sample))
        whole = -BETA * kl_gradient(problem)
        errors.append(apart(-BETA * field(log_ratio(problem), problem), whole))
        for found in (by_exact, by_sample):
            turns.append(turned(found, whole))
            errors.append(less(0.0, turns[-1]))
    yield from each_form(worst(errors), min_turns=min(turns), max_turns=max(turns))


@claim("ZCPO-5-F7scale")
def the_spread_of_k1_near_the_reference() -> Iterator[Found]:
    """Var(k1) = 2 KL to leading order: the ratio tends to 1 as the policy nears the reference."""
    errors = []
    for problem in bandits():
        gaps = []
        for bound in (0.02, 0.005, 0.00125):
            there = near(problem, bound)
            kl = exact(reverse_kl, there)[0]
            gaps.append(abs(variance(terms(there).p, log_ratio(there)) / (2 * kl) - 1))
        errors += [less(b, a, by=0.0) for a, b in pairwise(gaps)]
        errors.append(violation(gaps[-1] - 1e-3))
    yield from each_form(worst(errors))


@claim("ZCPO-5-cRestimate")
def the_sum_of_norms_from_a_sample() -> Iterator[Found]:
    """The number of tokens times the mean norm of some of them has the right mean."""
    problem, errors = stale()[-2], []
    index = groups(problem, 3)[1]
    advantage = standardized_or_zero(problem.rewards[index])
    row = int(advantage.abs().sum(-1).argmax())
    one = index[row : row + 1]
    slopes = surrogate_slopes(problem, one, advantage[row : row + 1])
    each = contributions(problem, one, slopes)[0].flatten(0, 1)
    norms = each.flatten(1).norm(dim=-1)
    whole, total = float(norms.sum()), float(each.sum(0).norm())
    drawn = [len(norms) * float(norms[list(c)].mean()) for c in combinations(range(len(norms)), 2)]
    errors.append(apart(sum(drawn) / len(drawn), whole))
    rates = [1 - total / x for x in drawn if x > 0]
    yield from each_form(worst(errors), number=1 - total / whole, number_2=sum(rates) / len(rates))
