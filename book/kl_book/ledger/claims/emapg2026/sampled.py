"""Section 5.2 on-policy: exact KL, and one sampled token at a given prefix (emapg2026).

A position is a world of one token. The derivations are in `kl_book.ledger.claims.emapg2026.appendices`,
what holds off-policy and over whole sequences in `kl_book.ledger.claims.emapg2026.importance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, numbers, printed, same
from kl_book.ledger.claims.ground import estimates, positions, sums
from kl_book.ledger.claims.ground.estimates import SAMPLED, exact_reverse, k1, k3, k3_plus_plus, k4, k5
from kl_book.ledger.claims.ground.positions import (
    SMALLEST_BIAS,
    bias_of_value_and_gradient,
    every_position,
    moments,
)
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_companion.tabular import bandit


@claim("EMA-eq17-19", over=each(every_position))
def exact_kl_of_a_prefix(w: Enumeration) -> Iterator[Found]:
    """The sum over the vocabulary is E[-log w]; its value and gradient are those of the KL."""
    yield same(w.E(w.l), w.kl)
    yield same(w.Es(w.l), w.d_kl)
    yield printed(bias_of_value_and_gradient(exact_reverse, w.problem))


@claim("EMA-eq17-19+variance", over=each(positions.positions))
def exact_kl_has_no_variance(w: Enumeration) -> Iterator[Found]:
    """At a given prefix nothing is sampled in it: unbiased, without variance, unlike sampled KL."""
    yield printed(bias_of_value_and_gradient(exact_reverse, w.problem))
    for x in positions.sampled_values_and_gradients(exact_reverse, w.problem):
        yield printed(w.var(x))
    for x in positions.sampled_values_and_gradients(k4, w.problem):
        yield at_most(SMALLEST_BIAS, w.var(x))


def saved_numbers(loss: Callable[[torch.Tensor], torch.Tensor], size: int) -> int:
    """Numbers that automatic differentiation saves for the backward pass of a function of [size] numbers."""
    leaf = torch.linspace(-1, 0, size, dtype=torch.float64).log_softmax(-1).requires_grad_()
    saved: dict[tuple[int, int], torch.Tensor] = {}

    def save(x: torch.Tensor) -> torch.Tensor:
        saved[x.data_ptr(), x.numel()] = x  # alive, so that no address is used twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        loss(leaf)
    return sum(x.numel() for x in saved.values() if x.is_floating_point())


def _sampled_alone(logp: torch.Tensor) -> torch.Tensor:
    """Every sampled estimate from the log-prob of its token."""
    return torch.stack([f(logp, logp.detach() - 1).sum() for f in SAMPLED.values()]).sum()


def _exact_of_logits(logits: torch.Tensor) -> torch.Tensor:
    return exact_reverse(logits.log_softmax(-1), logits.detach().flip(0))[0]


def _k4_of_logits(logits: torch.Tensor) -> torch.Tensor:
    return k4(logits.log_softmax(-1)[:1], logits.detach()[:1]).sum()


@claim("EMA-eq17-19+memory")
def memory_of_exact_and_of_sampled_kl() -> Iterator[Found]:
    """Numbers of the reference that are read, numbers that are saved for the backward pass: 1, or V."""
    for problem in (bandit(8, seed=8), bandit(64, seed=64)):
        for estimate in SAMPLED.values():
            yield same(positions.reference_logps_read(estimate, problem), 1)
        for estimate in (estimates.exact_forward, exact_reverse):
            yield same(positions.reference_logps_read(estimate, problem), len(problem.sequences))
    yield at_most(saved_numbers(_sampled_alone, 1), 8 * len(SAMPLED))
    sampled, exact = (
        (saved_numbers(f, 1024) - saved_numbers(f, 256)) / (1024 - 256)
        for f in (_k4_of_logits, _exact_of_logits)
    )
    yield at_most(1.0, exact)
    yield numbers(sampled=sampled, exact=exact)


@claim("EMA-5.2-none", over=each(positions.positions))
def no_estimator_of_the_three_has_both(w: Enumeration) -> Iterator[Found]:
    """K1 and K3 miss the gradient, K2 the value."""
    for name in ("K1", "K3"):
        value, gradient = moments(SAMPLED[name], w.problem)
        yield same(value, w.kl)
        yield differs(gradient, w.d_kl, by=SMALLEST_BIAS)
    value, gradient = moments(SAMPLED["K2"], w.problem)
    yield differs(value, w.kl, by=SMALLEST_BIAS)
    yield same(gradient, w.d_kl)


@claim("EMA-eq21", over=each(every_position))
def ratio_with_a_stopped_denominator(w: Enumeration) -> Iterator[Found]:
    """r is 1, and its gradient is the score."""
    yield same(w.value(lambda a, _: estimates.score_ratio(a)), 1.0)
    yield same(w.slope(lambda a, _: estimates.score_ratio(a)), w.s)


@claim("EMA-eq22", over=each(every_position))
def multiplying_by_r_turns_the_direction(w: Enumeration) -> Iterator[Found]:
    """K3 has the gradient of the forward KL and r K3 that of the reverse KL, at one value."""
    gradient = moments(k3, w.problem)[1]
    yield printed(bias_of_value_and_gradient(k3_plus_plus, w.problem))
    yield same(gradient, w.d_forward)
    yield same(w.value(k3), w.value(k3_plus_plus))
    if w.kl:
        yield differs(gradient, w.d_kl, by=SMALLEST_BIAS)


@claim("EMA-eq23", "EMA-eq92-95", over=each(every_position))
def k4_has_both(w: Enumeration) -> Iterator[Found]:
    """r sg(K1): unbiased value and gradient, where K1 has no gradient on average; l s per sample."""
    yield printed(bias_of_value_and_gradient(k4, w.problem))
    yield same(moments(k1, w.problem)[1], 0.0)
    yield same(w.value(k4), w.value(k1))
    yield same(w.value(k4), w.l)
    yield same(w.slope(k4), w.vanilla())


@claim("EMA-eq24", "EMA-eq99-100", "EMA-eq101-102", over=each(every_position))
def k5_has_both(w: Enumeration) -> Iterator[Found]:
    """sg(w) log w + log r: value and gradient of the forward KL; per sample w log w and (1 - w) s."""
    ratio = sums.ref_ratio(w.problem)
    yield printed(bias_of_value_and_gradient(k5, w.problem, "forward"))
    yield same(w.value(k5), ratio * ratio.log())
    yield same(w.E(w.value(k5)), w.forward)
    yield same(w.slope(k5), w.times_score(1 - ratio))
    yield same(moments(k5, w.problem)[1], w.d_forward)
