"""Appendices E and F: how the sampled estimators are derived (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, hedged, worst
from kl_book.ledger.claims.ground.estimates import Estimate, k1, k2, k3, k3_plus_plus, k4, k5, score_ratio
from kl_book.ledger.claims.ground.off_policy import average
from kl_book.ledger.claims.ground.positions import (
    SMALLEST_BIAS,
    bias_of_value_and_gradient,
    every_position,
    exact_gradient,
    moments,
    positions,
    sampled_values_and_gradients,
    scaled_score,
    score,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    log_ratio,
    mean,
    ref_ratio,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.worlds import hedge_bandits, two_policies
from kl_companion.tabular import Problem


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


def _whole_gradient(f: Estimate, problem: Problem) -> torch.Tensor:
    """Gradient of sum_j pi(j) f(j, theta), the sum differentiated as it stands, [rows, vocab]."""
    return exact(lambda a, b: (a.exp() * f(a, b)).sum(), problem)[1]


@claim("EMA-eq75")
def gradient_of_an_expectation_has_two_terms() -> Iterator[Found]:
    """grad E[f] = E[f s + grad f] for any f(token, theta), and E[grad f] alone is another vector."""
    errors = []
    for problem in every_position():
        for f in _functions(len(problem.sequences)):
            x, g = sampled_values_and_gradients(f, problem)
            two = average(scaled_score(x, problem) + g, problem)
            errors.append(apart(two, _whole_gradient(f, problem)))
    for problem in positions():
        alone = average(sampled_values_and_gradients(k3, problem)[1], problem)
        errors.append(differs(alone, _whole_gradient(k3, problem), by=SMALLEST_BIAS))
    yield from each_form(worst(errors))


@claim("EMA-eq76-79")
def values_of_the_three() -> Iterator[Found]:
    """E[K1] = E[K3] = KL, E[w] = 1, and E[K2] is another number."""
    errors = []
    for problem in positions():
        kl = exact(reverse_kl, problem)[0]
        errors.append(apart(average(ref_ratio(problem), problem), 1.0))
        errors += [apart(average(values(f, problem), problem), kl) for f in (k1, k3)]
        errors.append(differs(average(values(k2, problem), problem), kl, by=SMALLEST_BIAS))
    yield from each_form(worst(errors))


@claim("EMA-E2-K1")
def differentiated_k1() -> Iterator[Found]:
    """Per sample the score, on average zero."""
    errors = [apart(differentiated(k1, p), score(p)) for p in every_position()]
    yield from each_form(worst(errors + [apart(moments(k1, p)[1], 0.0) for p in every_position()]))


@claim("EMA-eq80")
def differentiated_k2() -> Iterator[Found]:
    """Per sample the log-ratio times the score, on average the gradient of the KL."""
    errors = [apart(differentiated(k2, p), scaled_score(log_ratio(p), p)) for p in every_position()]
    yield from each_form(
        worst(errors + [apart(moments(k2, p)[1], exact_gradient(p)) for p in every_position()])
    )


@claim("EMA-eq81")
def differentiated_k3() -> Iterator[Found]:
    """Per sample (1 - w) s, on average the gradient of the forward KL and not of the reverse."""
    errors = []
    for problem in every_position():
        w = ref_ratio(problem)
        errors.append(apart(differentiated(lambda a, b: (b - a).exp(), problem), scaled_score(-w, problem)))
        errors.append(apart(differentiated(k3, problem), scaled_score(1 - w, problem)))
        forward = exact_gradient(problem, "forward")
        errors += [apart(moments(k3, problem)[1], forward)]
        errors.append(apart(average(scaled_score(-w, problem), problem), forward))
    errors += [differs(moments(k3, p)[1], exact_gradient(p), by=SMALLEST_BIAS) for p in positions()]
    yield from each_form(worst(errors))


@claim("EMA-eq83")
def the_ratio_restores_the_missing_term() -> Iterator[Found]:
    """E[grad(r f)] = grad E[f] for any f(token, theta)."""
    errors = []
    for problem in every_position():
        for f in _functions(len(problem.sequences)):

            def weighted(logp: torch.Tensor, ref_logp: torch.Tensor, f: Estimate = f) -> torch.Tensor:
                return score_ratio(logp) * f(logp, ref_logp)

            errors.append(apart(moments(weighted, problem)[1], _whole_gradient(f, problem)))
    yield from each_form(worst(errors))


@claim("EMA-eq84-86")
def k3_plus_plus_by_the_trick() -> Iterator[Found]:
    """The value of K3, and the gradient of its expectation, which is the KL's."""
    errors = [bias_of_value_and_gradient(k3_plus_plus, p) for p in every_position()]
    errors += [apart(values(k3_plus_plus, p), values(k3, p)) for p in every_position()]
    errors += [apart(_whole_gradient(k3, p), exact_gradient(p)) for p in every_position()]
    yield from each_form(worst(errors))


@claim("EMA-eq87-91")
def k3_plus_plus_sample_by_sample() -> Iterator[Found]:
    """(l + w - 1) s + (1 - w) s = l s: the gradient of a sample is the log-ratio times the score."""
    errors = []
    for problem in every_position():
        x, w = log_ratio(problem), ref_ratio(problem)
        found = differentiated(k3_plus_plus, problem)
        product = scaled_score(x + w - 1, problem) + scaled_score(1 - w, problem)
        errors += [apart(found, product), apart(found, scaled_score(x, problem))]
        errors.append(apart(average(found, problem), exact_gradient(problem)))
    yield from each_form(worst(errors))


@claim("EMA-eq92-95")
def k4_sample_by_sample() -> Iterator[Found]:
    """The value of K1; per sample l s; on average the gradient of the KL."""
    errors = [bias_of_value_and_gradient(k4, p) for p in every_position()]
    errors += [apart(values(k4, p), log_ratio(p)) for p in every_position()]
    errors += [apart(differentiated(k4, p), scaled_score(log_ratio(p), p)) for p in every_position()]
    yield from each_form(worst(errors))


@claim("EMA-eq96-98")
def forms_of_the_forward_gradient() -> Iterator[Found]:
    """-sum pi_ref s = -E[w s] = E[(1 - w) s], and it is the gradient of the forward KL."""
    errors = []
    for problem in every_position():
        wanted, w = exact(forward_kl, problem)[1], ref_ratio(problem)
        summed = -mean(terms(problem).ref_logp.sum(-1).exp(), score(problem))
        forms = [summed, *(average(scaled_score(c, problem), problem) for c in (-w, 1 - w))]
        errors += [apart(f, wanted) for f in forms]
    yield from each_form(worst(errors))


@claim("EMA-eq99-100")
def value_of_k5() -> Iterator[Found]:
    """log r adds nothing; E[w log w] is the forward KL."""
    errors = []
    for problem in every_position():
        w = ref_ratio(problem)
        errors.append(apart(values(k5, problem), w * w.log()))
        errors.append(apart(average(values(k5, problem), problem), exact(forward_kl, problem)[0]))
    yield from each_form(worst(errors))


@claim("EMA-eq101-102")
def gradient_of_k5() -> Iterator[Found]:
    """Per sample (1 - w) s, on average the gradient of the forward KL."""
    errors = [apart(differentiated(k5, p), scaled_score(1 - ref_ratio(p), p)) for p in every_position()]
    errors += [apart(moments(k5, p)[1], exact_gradient(p, "forward")) for p in every_position()]
    yield from each_form(worst(errors))


def _saved(problem: Problem) -> tuple[float, float, float]:
    """Variance of w s, that of (1 - w) s, and 2 E_ref|s|^2 - E_pi|s|^2."""
    t, w = terms(problem), ref_ratio(problem)
    square = score(problem).square().sum((-2, -1))
    gain = 2 * float(t.ref_logp.sum(-1).exp() @ square) - float(t.p @ square)
    return variance(t.p, scaled_score(w, problem)), variance(t.p, scaled_score(1 - w, problem)), gain


def _overlap(problem: Problem) -> float:
    """1 + 3 |pi|^2 - 4 pi.pi_ref, from the two distributions."""
    p, q = (x[0].softmax(-1) for x in (problem.logits, problem.ref_logits))
    return float(1 + 3 * p @ p - 4 * p @ q)


@claim("EMA-F4")
def a_baseline_of_one() -> Iterator[Found]:
    """It keeps the mean; the variance falls by 2 E_ref|s|^2 - E_pi|s|^2, mostly."""
    errors = [
        apart(average(scaled_score(1 - ref_ratio(p), p), p), average(scaled_score(-ref_ratio(p), p), p))
        for p in every_position()
    ]
    rare = two_policies((0.9, 0.1), (0.99, 0.01))
    found = {p: _saved(p) for p in (*every_position(), *hedge_bandits(), rare)}
    errors += [abs(a - b - gain) / (1 + a) for a, b, gain in found.values()]
    errors += [apart(gain, _overlap(p)) for p, (*_, gain) in found.items()]
    helped = [found[p][1] < found[p][0] for p in hedge_bandits()]
    before, after, _ = found[rare]
    yield from each_form(
        max(worst(errors), hedged(helped)),
        sum_of_helped=sum(helped),
        number_of_helped=len(helped),
        before=before,
        after=after,
    )
