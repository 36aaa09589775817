"""Sections 4.2 and 6.2: what the later penalties of a sample charge to a token (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, violation, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.sums import kl_gradient, mean, terms
from kl_book.ledger.claims.ground.updates import (
    later,
    penalties,
    population_mean,
    token_field,
)
from kl_book.ledger.claims.ground.worlds import trees
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem


def _registered(name: str, problem: Problem) -> torch.Tensor:
    """A registered estimator at every token, 0 outside the mask, [count, length]."""
    t = terms(problem)
    return get_estimator(name).fn(t.logp, t.ref_logp) * problem.completion_mask


@claim("FRPO-4.2-centering")
def sign_and_centering_change_what_a_token_is_charged() -> Iterator[Found]:
    """Per sample, earlier tokens are charged otherwise by k1 and by k3; with the other sign the KL rises."""
    errors = []
    for problem in trees():
        signed, one_sided = (later(_registered(name, problem)) for name in ("k1", "k3"))
        errors.append(differs(signed, one_sided))
        to_go = sum_from_here(_registered("k1", problem))
        errors.append(apart(token_field(problem, to_go), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("FRPO-6.2.1-onesided")
def the_later_k3_never_raises_a_weight() -> Iterator[Found]:
    """Its sum is never negative; that of k1 is negative for some tokens."""
    errors = []
    for problem in trees():
        signed, one_sided = (later(_registered(name, problem)) for name in ("k1", "k3"))
        errors += [violation(-float(one_sided.min())), violation(float(signed.min()) + 1e-6)]
    yield from each_form(worst(errors))


@claim("FRPO-6.2.2-samedirection")
def a_penalty_of_one_sign_has_no_direction() -> Iterator[Found]:
    """The expected update of the later k3 is that of the later k1: the score has mean zero."""
    both_signs, corrected = [], []
    for problem in trees():
        one_sided = token_field(problem, later(_registered("k3", problem)))
        rows = one_sided[one_sided.abs().amax(-1) > 1e-6]
        both_signs += [bool((row > 0).any() and (row < 0).any()) for row in rows]
        signed = token_field(problem, later(_registered("k1", problem)))
        corrected.append(apart(token_field(problem, later(penalties("k3", problem))), signed))
    yield from each_form(share_of_cases(both_signs), worst(corrected), number_of_both_signs=len(both_signs))


@claim("FRPO-6.2.2-baseline")
def the_length_of_the_answer_is_no_baseline() -> Iterator[Found]:
    """T - i knows the later tokens: where an answer may end early it has a mean against the score."""
    printed, corrected, pulls = [], [], []
    for problem in trees():
        paid = penalties("k3", problem)
        tokens_left = later(problem.completion_mask) * problem.completion_mask
        per_token = float(mean(terms(problem).p, paid.sum(-1))) / population_mean(
            problem, problem.completion_mask.sum(-1)
        )
        wanted = token_field(problem, later(paid))
        printed.append(relative(token_field(problem, later(paid) - per_token * tokens_left), wanted))
        expected_left = values_of_prefixes(problem, tokens_left)[problem.rows] * problem.completion_mask
        corrected.append(apart(token_field(problem, later(paid) - per_token * expected_left), wanted))
        if printed[-1] > 1e-9:
            pulls.append(printed[-1])
    yield from each_form(worst(printed), worst(corrected), min_pulls=min(pulls), max_pulls=max(pulls))
