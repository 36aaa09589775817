"""Appendix H: any f-divergence, sampled or with an exact head (emapg2026).

The generators are written out here, and so are the divergences that their names stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, inside, numbers, printed, same
from kl_book.ledger.claims.ground import positions, top_k
from kl_book.ledger.claims.ground.divergences import GENERATORS, Pair, bias_against, divergence
from kl_book.ledger.claims.ground.estimates import k1, k4, score_ratio
from kl_book.ledger.claims.ground.sums import exact, mean, reverse_kl, slopes
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, hedge_bandits, two_policies
from kl_companion.estimators.sampled import kf_plus_plus

Generator = Callable[[torch.Tensor], torch.Tensor]


def sampled(f: Generator) -> Pair:
    """r w f(1/w), eq (115)."""
    return lambda p, q: score_ratio(p) * (q - p).exp() * f((p - q).exp())


def _detached(f: Generator) -> Pair:
    """sg(w) f(1/w), eq (116)."""
    return lambda p, q: (q - p).exp().detach() * f((p - q).exp())


def _entry(f: Generator) -> Pair:
    """Q f(P/Q)."""
    return lambda p, q: q.exp() * f((p - q).exp())


@claim("EMA-eq109-114", over=each(bandits))
def forms_of_a_divergence(w: Enumeration) -> Iterator[Found]:
    """Q f(t) averaged is P w f(1/w) averaged, and its gradient is E[f'(t) s]; 0 between equals."""
    t = w.l.exp()
    for f in GENERATORS.values():
        value, slope = exact(divergence(f), w.problem)
        yield same(mean(w.ref, f(t)), value)
        yield same(w.E(f(t) / t), value)
        yield same(w.Es(slopes(f, t)), slope)
        yield at_most(0.0, value)
        yield same(f(torch.ones(1).double()), 0.0)


@claim("EMA-eq115-119", over=each(bandits))
def any_divergence_from_samples(w: Enumeration) -> Iterator[Found]:
    """r w f(1/w) is sg(w) f(1/w), sample by sample, and unbiased in value and gradient."""
    for name, f in GENERATORS.items():
        yield printed(bias_against(sampled(f), divergence(f), w.problem))
        yield same(w.value(sampled(f)), w.value(_detached(f)))
        yield same(w.slope(sampled(f)), w.slope(_detached(f)))
        if not name.startswith("power"):
            yield printed(bias_against(kf_plus_plus(name, "generic"), divergence(f), w.problem))


@claim("EMA-eq120-126", over=each(lambda: (*bandits()[:6], bandits()[8])))
def any_divergence_with_a_head(w: Enumeration) -> Iterator[Found]:
    """Head of entries Q f(P/Q), tail r w f(1/w) with the same f: unbiased for every set of tokens."""
    for f in GENERATORS.values():
        split = top_k.WrittenSplit(_entry(f), sampled(f))
        right, slope = exact(divergence(f), w.problem)
        for head in top_k.subsets(len(w.p)):
            value, gradient = top_k.mean_of_top_k(split, head, w.problem)
            yield same(value, right)
            yield same(gradient, slope)


@claim("EMA-H-note2", over=each(bandits))
def the_mean_of_the_log_ratio_is_the_kl(w: Enumeration) -> Iterator[Found]:
    """E[-log w] is the KL; what is zero is the mean of its gradient, the score."""
    yield same(w.E(w.value(k1)), 0.0)
    yield same(w.E(w.value(k1)), w.kl, "corrected")
    yield same(w.grad(k1), 0.0, "corrected")


@words("EMA-H-note2")
def mean_of_two_answers() -> dict[str, Any]:
    """E[-log w] for pi = (3/4, 1/4)."""
    w = Enumeration(two_policies((0.75, 0.25), (0.5, 0.5)))
    return {"mean": w.E(w.l)}


@claim("EMA-H-note3")
def detaching_the_log_ratio() -> Iterator[Found]:
    """K4 against r (-log w): one mean gradient, and less variance exactly where E[(2 l + 1) |s|^2] > 0."""
    left = []
    for w in each(hedge_bandits, two_policies((0.99, 0.01), (0.96, 0.04)))():
        for estimator in (k4, sampled(GENERATORS["reverse_kl"])):
            yield inside(bias_against(estimator, reverse_kl, w.problem))
        before, after, saved = positions.baseline_gain(w.l + 1, w.l, w.problem)
        yield inside(float(after >= before and saved > 0))
        yield at_most(abs(before - after - saved), 1e-12 * (1 + before), "inside")
        left.append(after / before)
    yield printed(sum(x >= 1 for x in left) / len(left))
    yield numbers(before=before, after=after)  # of the last one, which is not on the fixed list
    lower = sum(x < 1 for x in left[:-1])
    yield numbers(lower=lower, cases=len(left) - 1, most_saved=1 / min(left[:-1]), most_added=max(left[:-1]))
