"""Section 5.2 on-policy: exact KL, and one sampled token at a given prefix (emapg2026).

A position is a world of one token. The derivations are in `kl_book.ledger.claims.emapg2026.appendices`,
what holds off-policy and over whole sequences in `kl_book.ledger.claims.emapg2026.importance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, violation, worst
from kl_book.ledger.claims.ground.estimates import (
    SAMPLED,
    exact_forward,
    exact_reverse,
    k1,
    k3,
    k3_plus_plus,
    k4,
    k5,
    score_ratio,
)
from kl_book.ledger.claims.ground.off_policy import average
from kl_book.ledger.claims.ground.positions import (
    SMALLEST_BIAS,
    bias_of_value_and_gradient,
    every_position,
    exact_gradient,
    moments,
    positions,
    reference_logps_read,
    sampled_values_and_gradients,
    scaled_score,
    score,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    log_ratio,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_companion.tabular import bandit


@claim("EMA-eq17-19")
def exact_kl_of_a_prefix() -> Iterator[Found]:
    """The sum over the vocabulary is E[-log w]; its value and gradient are those of the KL."""
    errors = []
    for problem in every_position():
        kl, gradient = exact(reverse_kl, problem)
        errors.append(apart(average(log_ratio(problem), problem), kl))
        errors.append(apart(average(scaled_score(log_ratio(problem), problem), problem), gradient))
        errors.append(bias_of_value_and_gradient(exact_reverse, problem))
    yield from each_form(worst(errors))


@claim("EMA-eq17-19+variance")
def exact_kl_has_no_variance() -> Iterator[Found]:
    """At a given prefix nothing is sampled in it: unbiased, without variance, unlike sampled KL."""
    errors = []
    for problem in positions():
        errors.append(bias_of_value_and_gradient(exact_reverse, problem))
        p = terms(problem).p
        errors += [variance(p, x) for x in sampled_values_and_gradients(exact_reverse, problem)]
        errors += [
            violation(SMALLEST_BIAS - variance(p, x)) for x in sampled_values_and_gradients(k4, problem)
        ]
    yield from each_form(worst(errors))


def kept(loss: Callable[[torch.Tensor], torch.Tensor], size: int) -> int:
    """Numbers that automatic differentiation saves for the backward pass of a function of [size] numbers."""
    leaf = torch.linspace(-1, 0, size, dtype=torch.float64).log_softmax(-1).requires_grad_()
    saved: dict[tuple[int, int], torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        saved[x.data_ptr(), x.numel()] = x  # kept alive, so that no address is used twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss(leaf)
    return sum(x.numel() for x in saved.values() if x.is_floating_point())


@claim("EMA-eq17-19+memory")
def memory_of_exact_and_of_sampled_kl() -> Iterator[Found]:
    """Numbers of the reference that are read, numbers that are saved for the backward pass: 1, or V."""
    sizes, worlds = (256, 1024), [bandit(v, seed=v) for v in (8, 64)]
    errors = [float(abs(reference_logps_read(SAMPLED[n], p) - 1)) for n in SAMPLED for p in worlds]
    errors += [
        float(abs(reference_logps_read(f, p) - len(p.sequences)))
        for f in (exact_reverse, exact_forward)
        for p in worlds
    ]

    def given(logp: torch.Tensor) -> torch.Tensor:
        return sum((f(logp, logp.detach() - 1).sum() for f in SAMPLED.values()), torch.zeros(()))

    def exactly(logits: torch.Tensor) -> torch.Tensor:
        return exact_reverse(logits.log_softmax(-1), logits.detach().flip(0))[0]

    def sampled(logits: torch.Tensor) -> torch.Tensor:
        return k4(logits.log_softmax(-1)[:1], logits.detach()[:1]).sum()

    grows = [(kept(f, sizes[1]) - kept(f, sizes[0])) / (sizes[1] - sizes[0]) for f in (exactly, sampled)]
    errors += [violation(kept(given, 1) - 8 * len(SAMPLED)), violation(1 - grows[0])]
    yield from each_form(worst(errors), grows_1=grows[1], grows_0=grows[0])


@claim("EMA-5.2-none")
def no_estimator_of_the_three_has_both() -> Iterator[Found]:
    """K1 and K3 miss the gradient, K2 the value."""
    errors = []
    for problem in positions():
        value, gradient = exact(reverse_kl, problem)
        for name in ("K1", "K2", "K3"):
            v, g = moments(SAMPLED[name], problem)
            right = [apart(v, value), differs(g, gradient, by=SMALLEST_BIAS)]
            errors += right if name != "K2" else [differs(v, value, by=SMALLEST_BIAS), apart(g, gradient)]
    yield from each_form(worst(errors))


@claim("EMA-eq21")
def ratio_with_a_stopped_denominator() -> Iterator[Found]:
    """r is 1, and its gradient is the score."""
    errors = []
    for problem in every_position():
        errors.append(apart(values(lambda a, _: score_ratio(a), problem), 1.0))
        errors.append(apart(differentiated(lambda a, _: score_ratio(a), problem), score(problem)))
    yield from each_form(worst(errors))


@claim("EMA-eq22")
def multiplying_by_r_turns_the_direction() -> Iterator[Found]:
    """K3 has the gradient of the forward KL and r K3 that of the reverse KL, at one value."""
    errors = []
    for problem in every_position():
        errors.append(bias_of_value_and_gradient(k3_plus_plus, problem))
        errors.append(apart(moments(k3, problem)[1], exact_gradient(problem, "forward")))
        errors.append(apart(values(k3, problem), values(k3_plus_plus, problem)))
    errors += [differs(moments(k3, p)[1], exact_gradient(p), by=SMALLEST_BIAS) for p in positions()]
    yield from each_form(worst(errors))


@claim("EMA-eq23")
def k4_has_both() -> Iterator[Found]:
    """r sg(K1): unbiased value and gradient, where K1 has no gradient on average."""
    errors = [bias_of_value_and_gradient(k4, p) for p in every_position()]
    errors += [apart(moments(k1, p)[1], 0.0) for p in every_position()]
    errors += [apart(values(k4, p), values(k1, p)) for p in every_position()]
    yield from each_form(worst(errors))


@claim("EMA-eq24")
def k5_has_both() -> Iterator[Found]:
    """sg(w) log w + log r: value and gradient of the forward KL."""
    yield from each_form(worst(bias_of_value_and_gradient(k5, p, "forward") for p in every_position()))
