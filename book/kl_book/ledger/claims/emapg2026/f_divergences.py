"""Appendix H: any f-divergence, sampled or with an exact head (emapg2026).

The generators are written out here, and so are the divergences that their names stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.divergences import GENERATORS, Pair, bias_against, divergence
from kl_book.ledger.claims.ground.errors import apart, hedged, violation, worst
from kl_book.ledger.claims.ground.estimates import detached_forward, k4, k5, score_ratio
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.top_k import WrittenSplit, mean_of_top_k, subsets
from kl_book.ledger.claims.ground.worlds import bandits, hedge_bandits, two_policies
from kl_companion.estimators.sampled import kf_plus_plus
from kl_companion.tabular import Problem


def sampled(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """r w f(1/w), eq (115)."""
    return lambda p, q: score_ratio(p) * (q - p).exp() * f((p - q).exp())


@claim("EMA-eq109-114")
def forms_of_a_divergence() -> Iterator[Found]:
    """Q f(t) averaged is P w f(1/w) averaged, and its gradient is E[f'(t) s]; 0 between equals."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        log_t = t.log_ratio.sum(-1)
        q, w = t.ref_logp.sum(-1).exp(), (-log_t).exp()
        for f in GENERATORS.values():
            value, slope = exact(divergence(f), problem)
            leaf = log_t.exp().requires_grad_()
            (derivative,) = torch.autograd.grad(f(leaf).sum(), leaf)
            errors += [
                apart(mean(q, f(log_t.exp())), value),
                apart(mean(t.p, w * f(1 / w)), value),
                apart(field(derivative, problem), slope),
                violation(-value),
                abs(float(f(torch.ones(1, dtype=torch.float64)))),
            ]
    yield from each_form(worst(errors))


@claim("EMA-eq115-119")
def any_divergence_from_samples() -> Iterator[Found]:
    """r w f(1/w) is sg(w) f(1/w), sample by sample, and unbiased in value and gradient."""
    errors = []
    for problem in bandits():
        for name, f in GENERATORS.items():
            estimator, other = sampled(f), _detached(f)
            errors += [
                bias_against(estimator, divergence(f), problem),
                apart(values(estimator, problem), values(other, problem)),
                apart(differentiated(estimator, problem), differentiated(other, problem)),
            ]
            if not name.startswith("power"):
                errors.append(bias_against(kf_plus_plus(name, "generic"), divergence(f), problem))
    yield from each_form(worst(errors))


def _detached(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """sg(w) f(1/w), eq (116)."""
    return lambda p, q: (q - p).exp().detach() * f((p - q).exp())


def _entry(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """Q f(P/Q)."""
    return lambda p, q: q.exp() * f((p - q).exp())


@claim("EMA-eq120-126")
def any_divergence_with_a_head() -> Iterator[Found]:
    """Head of entries Q f(P/Q), tail r w f(1/w) with the same f: unbiased for every set of tokens."""
    errors = []
    for problem in (*bandits()[:6], bandits()[8]):
        for f in GENERATORS.values():
            split = WrittenSplit(_entry(f), sampled(f))
            right, slope = exact(divergence(f), problem)
            for chosen in subsets(len(terms(problem).p)):
                value, gradient = mean_of_top_k(split, chosen, problem)
                errors += [apart(value, right), apart(gradient, slope)]
    yield from each_form(worst(errors))


def _baseline(more: torch.Tensor, less: torch.Tensor, problem: Problem) -> tuple[float, float, float]:
    """Variances with two coefficients of the score, and E[(more^2 - less^2) |s|^2]."""
    t = terms(problem)
    x, y = (c[:, None, None] * t.score for c in (more, less))
    saved = float(mean(t.p, (more**2 - less**2) * t.score.flatten(1).square().sum(-1)))
    return variance(t.p, x), variance(t.p, y), saved


@claim("EMA-H-note1")
def log_r_is_a_baseline() -> Iterator[Found]:
    """K5 = sg(w) log w + log r: log r has value 0 and mean gradient 0, E[w] = 1; typically less variance."""
    errors, rare = [], two_policies((0.9, 0.1), (0.99, 0.01))
    spread = {}
    for problem in (*bandits(), *hedge_bandits(), rare):
        t = terms(problem)
        w = (-t.log_ratio.sum(-1)).exp()
        more = differentiated(k5, problem) - differentiated(detached_forward, problem)
        errors += [apart(mean(t.p, w), 1.0), apart(values(k5, problem), values(detached_forward, problem))]
        errors += [apart(more, t.score), apart(mean(t.p, more), 0.0)]
        spread[problem] = before, after, saved = _baseline(-w, 1 - w, problem)
        errors.append(violation(abs(before - after - saved) - 1e-12 * (1 + before)))
    helped = [spread[p][1] < spread[p][0] for p in hedge_bandits()]
    before, after, _ = spread[rare]
    yield from each_form(
        max(worst(errors), hedged(helped)),
        sum_of_helped=sum(helped),
        number_of_helped=len(helped),
        after=after,
        before=before,
    )


def log_ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """-log w."""
    return p - q


@claim("EMA-H-note2")
def the_mean_of_the_log_ratio_is_the_kl() -> Iterator[Found]:
    """E[-log w] is the KL; what is zero is the mean of its gradient, the score."""
    printed, corrected = [], []
    for problem in bandits():
        t = terms(problem)
        printed.append(abs(float(mean(t.p, values(log_ratio, problem)))))
        corrected += [
            apart(mean(t.p, values(log_ratio, problem)), exact(reverse_kl, problem)[0]),
            apart(mean(t.p, differentiated(log_ratio, problem)), 0.0),
        ]
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    yield from each_form(
        worst(printed), worst(corrected), float=float(mean(terms(small).p, terms(small).log_ratio.sum(-1)))
    )


@claim("EMA-H-note3")
def detaching_the_log_ratio() -> Iterator[Found]:
    """K4 against r (-log w): one mean gradient, and less variance exactly where E[(2 l + 1) |s|^2] > 0."""
    always, inside, spread = [], [], {}
    small = two_policies((0.99, 0.01), (0.96, 0.04))
    for problem in (*hedge_bandits(), small):
        log_t = terms(problem).log_ratio.sum(-1)
        for estimator in (k4, sampled(GENERATORS["reverse_kl"])):
            always.append(bias_against(estimator, reverse_kl, problem))
        spread[problem] = before, after, saved = _baseline(log_t + 1, log_t, problem)
        inside.append(float(after >= before and saved > 0))
        always.append(violation(abs(before - after - saved) - 1e-12 * (1 + before)))
    ratios = [after / before for before, after, _ in spread.values()]  # the last one is the small one's
    listed = ratios[:-1]
    before, after, _ = spread[small]
    yield from each_form(
        max(worst(always), sum(x >= 1 for x in ratios) / len(ratios)),
        inside=worst([*always, *inside]),
        after=after,
        before=before,
        sum=sum(x < 1 for x in listed),
        number_of_listed=len(listed),
        number=1 / min(listed),
        max_listed=max(listed),
    )
