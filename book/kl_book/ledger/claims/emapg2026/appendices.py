"""Appendices E and F: how the sampled estimators are derived (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, differs, printed, same
from kl_book.ledger.claims.ground import errors, estimates, positions
from kl_book.ledger.claims.ground.estimates import Estimate, k1, k2, k3, k3_plus_plus, k5
from kl_book.ledger.claims.ground.positions import SMALLEST_BIAS, baseline_of_one, every_position, moments
from kl_book.ledger.claims.ground.sums import exact, mean, ref_ratio
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, hedge_bandits, two_policies

RARE = two_policies((0.9, 0.1), (0.99, 0.01))


def _functions(vocab: int) -> list[Estimate]:
    """Functions f(token, theta): the estimates, and others that depend on the whole distribution."""
    generator = torch.Generator().manual_seed(vocab)
    mix, shift = (torch.randn(vocab, n, generator=generator, dtype=torch.float64) for n in (vocab, 1))
    return [
        *(k1, k2, k3),
        lambda logp, ref_logp: shift[:, 0] + 0 * logp,
        lambda logp, ref_logp: (mix @ logp.exp()).sin() * ref_logp.exp(),
        lambda logp, ref_logp: (mix @ logp).tanh() + shift[:, 0] * logp,
    ]


def _whole_gradient(f: Estimate, w: Enumeration) -> torch.Tensor:
    """Gradient of sum_j pi(j) f(j, theta), the sum differentiated as it stands, [rows, vocab]."""
    return exact(lambda a, b: (a.exp() * f(a, b)).sum(), w.problem)[1]


@claim("EMA-eq75", over=each(every_position))
def gradient_of_an_expectation_has_two_terms(w: Enumeration) -> Iterator[Found]:
    """grad E[f] = E[f s + grad f] for any f(token, theta), and E[grad f] alone is another vector."""
    for f in _functions(len(w.p)):
        x, g = positions.sampled_values_and_gradients(f, w.problem)
        yield same(w.Es(x) + w.E(g), _whole_gradient(f, w))
    if w.kl:
        alone = w.E(positions.sampled_values_and_gradients(k3, w.problem)[1])
        yield differs(alone, _whole_gradient(k3, w), by=SMALLEST_BIAS)


@claim("EMA-eq76-79", over=each(positions.positions))
def values_of_the_three(w: Enumeration) -> Iterator[Found]:
    """E[K1] = E[K3] = KL, E[w] = 1, and E[K2] is another number."""
    yield same(w.E(ref_ratio(w.problem)), 1.0)
    yield same(w.E(w.value(k1)), w.kl)
    yield same(w.E(w.value(k3)), w.kl)
    yield differs(w.E(w.value(k2)), w.kl, by=SMALLEST_BIAS)


@claim("EMA-E2-K1", over=each(every_position))
def differentiated_k1(w: Enumeration) -> Iterator[Found]:
    """Per sample the score, on average zero."""
    yield same(w.slope(k1), w.s)
    yield same(moments(k1, w.problem)[1], 0.0)


@claim("EMA-eq80", over=each(every_position))
def differentiated_k2(w: Enumeration) -> Iterator[Found]:
    """Per sample the log-ratio times the score, on average the gradient of the KL."""
    yield same(w.slope(k2), w.vanilla())
    yield same(moments(k2, w.problem)[1], w.d_kl)


@claim("EMA-eq81", over=each(every_position))
def differentiated_k3(w: Enumeration) -> Iterator[Found]:
    """Per sample (1 - w) s, on average the gradient of the forward KL and not of the reverse."""
    ratio, gradient = ref_ratio(w.problem), moments(k3, w.problem)[1]
    yield same(w.slope(lambda a, b: (b - a).exp()), w.times_score(-ratio))
    yield same(w.slope(k3), w.times_score(1 - ratio))
    yield same(gradient, w.d_forward)
    yield same(w.Es(-ratio), w.d_forward)
    if w.kl:
        yield differs(gradient, w.d_kl, by=SMALLEST_BIAS)


@claim("EMA-eq83", over=each(every_position))
def the_ratio_restores_the_missing_term(w: Enumeration) -> Iterator[Found]:
    """E[grad(r f)] = grad E[f] for any f(token, theta)."""
    for f in _functions(len(w.p)):

        def weighted(logp: torch.Tensor, ref_logp: torch.Tensor, f: Estimate = f) -> torch.Tensor:
            return estimates.score_ratio(logp) * f(logp, ref_logp)

        yield same(moments(weighted, w.problem)[1], _whole_gradient(f, w))


@claim("EMA-eq84-86", "EMA-eq87-91", over=each(every_position))
def k3_plus_plus_by_the_trick(w: Enumeration) -> Iterator[Found]:
    """The value of K3, the KL's gradient on average; per sample (l + w - 1) s + (1 - w) s = l s."""
    slope, ratio = w.slope(k3_plus_plus), ref_ratio(w.problem)
    yield printed(positions.bias_of_value_and_gradient(k3_plus_plus, w.problem))
    yield same(w.value(k3_plus_plus), w.value(k3))
    yield same(_whole_gradient(k3, w), w.d_kl)
    yield same(slope, w.times_score(w.l + ratio - 1) + w.times_score(1 - ratio))
    yield same(slope, w.vanilla())
    yield same(w.E(slope), w.d_kl)


@claim("EMA-eq96-98", over=each(every_position))
def forms_of_the_forward_gradient(w: Enumeration) -> Iterator[Found]:
    """-sum pi_ref s = -E[w s] = E[(1 - w) s], and it is the gradient of the forward KL."""
    ratio = ref_ratio(w.problem)
    yield same(-mean(w.ref, w.s), w.d_forward)
    yield same(w.Es(-ratio), w.d_forward)
    yield same(w.Es(1 - ratio), w.d_forward)


@words("EMA-F4", "EMA-H-note1")
def where_a_baseline_of_one_helps() -> dict[str, Any]:
    """How often on the fixed list; variances of a case where it harms."""
    spread = [baseline_of_one(problem) for problem in hedge_bandits()]
    before, after, _ = baseline_of_one(RARE)
    lower = sum(less < more for more, less, _ in spread)
    return {"lower": lower, "cases": len(spread), "before": before, "after": after}


@claim("EMA-F4", "EMA-H-note1")
def a_baseline_of_one() -> Iterator[Found]:
    """log r adds s to the gradient, nothing to value or mean; E[w] = 1; mostly, the variance is lower."""
    for w in each(every_position, bandits, hedge_bandits, RARE)():
        ratio, more = ref_ratio(w.problem), w.slope(k5) - w.slope(estimates.detached_forward)
        yield same(w.E(ratio), 1.0)
        yield same(w.value(k5), w.value(estimates.detached_forward))
        yield same(more, w.s)
        yield same(w.E(more), 0.0)
        yield same(w.Es(1 - ratio), w.Es(-ratio))
        before, after, saved = baseline_of_one(w.problem)
        yield at_most(abs(before - after - saved), 1e-12 * (1 + before))
        p, q = (x[0].softmax(-1) for x in (w.problem.logits, w.problem.ref_logits))
        yield same(saved, 1 + 3 * p @ p - 4 * p @ q)
    spread = [baseline_of_one(problem) for problem in hedge_bandits()]
    yield printed(errors.hedged(after < before for before, after, _ in spread))
