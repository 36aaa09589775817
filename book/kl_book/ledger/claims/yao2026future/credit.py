"""Sections 4.2 and 6.2: what the later penalties of a sample charge to a token (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, numbers, printed, same
from kl_book.ledger.claims.ground import errors, off_policy, sequences
from kl_book.ledger.claims.ground.updates import later, penalties, token_field
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import trees
from kl_companion.estimators import get_estimator


def _registered(name: str, w: Enumeration) -> torch.Tensor:
    """A registered estimator at every token, 0 outside the mask, [count, length]."""
    return get_estimator(name).fn(w.t.logp, w.t.ref_logp) * w.problem.completion_mask


@claim("FRPO-4.2-centering", over=each(trees))
def sign_and_centering_change_what_a_token_is_charged(w: Enumeration) -> Iterator[Found]:
    """Per sample, earlier tokens are charged otherwise by k1 and by k3; with the other sign the KL rises."""
    yield differs(later(_registered("k1", w)), later(_registered("k3", w)))
    yield same(token_field(w.problem, sequences.sum_from_here(_registered("k1", w))), w.d_kl)


@claim("FRPO-6.2.1-onesided", over=each(trees))
def the_later_k3_never_raises_a_weight(w: Enumeration) -> Iterator[Found]:
    """Its sum is never negative; that of k1 is negative for some tokens."""
    yield at_most(0.0, later(_registered("k3", w)))
    yield at_most(later(_registered("k1", w)).min(), -1e-6)


@claim("FRPO-6.2.2-samedirection")
def a_penalty_of_one_sign_has_no_direction() -> Iterator[Found]:
    """The expected update of the later k3 is that of the later k1: the score has mean zero."""
    both_signs = []
    for w in each(trees)():
        signed, one_sided = (token_field(w.problem, later(_registered(k, w))) for k in ("k1", "k3"))
        rows = one_sided[one_sided.abs().amax(-1) > 1e-6]
        both_signs += [bool((row > 0).any() and (row < 0).any()) for row in rows]
        yield same(token_field(w.problem, later(penalties("k3", w.problem))), signed, "corrected")
    yield printed(off_policy.share_of_cases(both_signs))
    yield numbers(prefixes=len(both_signs))


@claim("FRPO-6.2.2-baseline")
def the_length_of_the_answer_is_no_baseline() -> Iterator[Found]:
    """T - i knows the later tokens: where an answer may end early it has a mean against the score."""
    pulls = []
    for w in each(trees)():
        p, mask, penalty = w.problem, w.problem.completion_mask, penalties("k3", w.problem)
        left = later(mask) * mask
        per_token = w.E(penalty.sum(-1)) / w.E(mask.sum(-1))
        update = token_field(p, later(penalty))
        pulls.append(errors.relative(token_field(p, later(penalty) - per_token * left), update))
        expected_left = sequences.values_of_prefixes(p, left)[p.rows] * mask
        yield same(token_field(p, later(penalty) - per_token * expected_left), update, "corrected")
    yield printed(max(pulls))
    yield numbers(least=min(x for x in pulls if x > 1e-9), most=max(pulls))
