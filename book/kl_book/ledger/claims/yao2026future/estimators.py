"""Tables 3 and 4 and section 6.2.1: values and gradients of estimates of one token (yao2026future)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.estimates import Estimate, exact_forward, exact_reverse, k1, k2, k3
from kl_book.ledger.claims.ground.positions import exact_gradient, moments, positions
from kl_book.ledger.claims.ground.sums import exact, forward_kl, mean, reverse_kl, terms, variance
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, two_policies
from kl_companion.tabular import Problem

BIASED = 1e-8  # at least, in every single world


def k3_plus(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """The value of k3 and the gradient of k2."""
    square = k2(logp, ref_logp)
    return square - square.detach() + k3(logp, ref_logp).detach()


def exchanged(estimate: Estimate) -> Estimate:
    """The same estimate with policy and reference exchanged: of the forward KL."""
    return lambda logp, ref_logp: estimate(ref_logp, logp)


def _from_reference(problem: Problem) -> Problem:
    """The same world, sampled from the reference."""
    return problem._replace(behavior_logits=problem.ref_logits)


Pair = tuple[torch.Tensor, torch.Tensor]


def _moments(estimate: Estimate, problem: Problem) -> Pair:
    """Mean of the estimate and of its gradient."""
    value, gradient = moments(estimate, problem)
    return torch.tensor(value, dtype=torch.float64), gradient


def _truth(problem: Problem, target: str) -> Pair:
    """Value and gradient of the divergence."""
    value = exact(forward_kl if target == "forward" else reverse_kl, problem)[0]
    return torch.tensor(value, dtype=torch.float64), exact_gradient(problem, target)


def _row(estimate: Estimate, value: bool, gradient: bool, positive: bool, *, forward: bool = False) -> float:
    """Error of a row: unbiased or not in value and gradient, never negative or negative somewhere."""
    errors, least = [], math.inf
    for problem in positions():
        there = _from_reference(problem) if forward else problem
        found, wanted = _moments(estimate, there), _truth(problem, "forward" if forward else "reverse")
        for x, right, unbiased in zip(found, wanted, (value, gradient), strict=True):
            errors.append(apart(x, right) if unbiased else differs(x, right, by=BIASED))
        t = terms(there)
        least = min(least, float(estimate(t.logp[:, 0], t.ref_logp[:, 0]).min()))
    errors.append(violation(-1e-12 - least) if positive else violation(least + 1e-6))
    return worst(errors)


@claim("FRPO-tab3-k1")
def row_of_k1() -> Iterator[Found]:
    """Unbiased, biased, and negative for some tokens."""
    yield from each_form(_row(k1, value=True, gradient=False, positive=False))


@claim("FRPO-tab3-k2")
def row_of_k2() -> Iterator[Found]:
    """Biased, unbiased, never negative."""
    yield from each_form(_row(k2, value=False, gradient=True, positive=True))


@claim("FRPO-tab3-k3")
def row_of_k3() -> Iterator[Found]:
    """Unbiased, biased, never negative."""
    yield from each_form(_row(k3, value=True, gradient=False, positive=True))


@claim("FRPO-tab3-k3plus")
def row_of_k3_plus() -> Iterator[Found]:
    """Unbiased in both, never negative."""
    yield from each_form(_row(k3_plus, value=True, gradient=True, positive=True))


@claim("FRPO-tab3-full")
def row_of_the_whole_sum() -> Iterator[Found]:
    """Exact in both, never negative."""
    yield from each_form(_row(exact_reverse, value=True, gradient=True, positive=True))


# estimate, and whether value and gradient are right under the policy itself
RIGHT: tuple[tuple[Estimate, bool, bool], ...] = (
    (k1, True, False),
    (k2, False, True),
    (k3, True, False),
    (k3_plus, True, True),
)


@claim("FRPO-tab3-off")
def older_samples_bias_every_estimate() -> Iterator[Found]:
    """What is right under the policy itself is off under another sampler, in value and in gradient."""
    errors = []
    for problem in (p for p in sampled_elsewhere() if p.rows.shape[1] == 1):
        own = problem._replace(behavior_logits=None)
        wanted = _truth(own, "reverse")
        for estimate, *unbiased in RIGHT:
            here, there = _moments(estimate, own), _moments(estimate, problem)
            for x, y, z, was_right in zip(here, there, wanted, unbiased, strict=True):
                errors += [apart(x, z)] if was_right else []
                errors.append(differs(y, z, by=BIASED))
    yield from each_form(worst(errors))


@claim("FRPO-tab4-k1")
def row_of_forward_k1() -> Iterator[Found]:
    """Unbiased in both under the reference, negative for some tokens."""
    yield from each_form(_row(exchanged(k1), value=True, gradient=True, positive=False, forward=True))


@claim("FRPO-tab4-k2")
def row_of_forward_k2() -> Iterator[Found]:
    """Biased in both, never negative; the value is half the variance and half the square of the KL."""
    errors = [_row(exchanged(k2), value=False, gradient=False, positive=True, forward=True)]
    for problem in positions():
        t, kl = terms(_from_reference(problem)), exact(forward_kl, problem)[0]
        found = float(mean(t.p, exchanged(k2)(t.logp[:, 0], t.ref_logp[:, 0])))
        errors.append(apart(found, (variance(t.p, t.log_ratio[:, 0]) + kl**2) / 2))
    yield from each_form(worst(errors))


@claim("FRPO-tab4-k3")
def row_of_forward_k3() -> Iterator[Found]:
    """Unbiased in both under the reference, never negative."""
    yield from each_form(_row(exchanged(k3), value=True, gradient=True, positive=True, forward=True))


@claim("FRPO-tab4-full")
def row_of_the_whole_forward_sum() -> Iterator[Found]:
    """Exact in both, never negative."""
    yield from each_form(_row(exact_forward, value=True, gradient=True, positive=True, forward=True))


@claim("FRPO-B2-values")
def values_of_the_forward_estimates() -> Iterator[Found]:
    """k1 and k3 unbiased under the reference, k3 never negative, k2 biased."""
    rows = ((k1, True, True, False), (k2, False, False, True), (k3, True, True, True))
    yield from each_form(worst(_row(exchanged(estimate), *is_so, forward=True) for estimate, *is_so in rows))


@claim("FRPO-6.2.1-modes")
def what_each_direction_punishes() -> Iterator[Found]:
    """The forward KL of a token that the policy drops has no bound, nor the reverse KL of one that is new."""
    errors, half = [], (0.5, 0.5)
    forward, reverse = [], []
    for rare in (1e-3, 1e-6, 1e-12):
        dropped, unlikely = two_policies((rare, 1 - rare), half), two_policies(half, (rare, 1 - rare))
        forward.append(exact(forward_kl, dropped)[0])
        reverse.append(exact(reverse_kl, unlikely)[0])
        errors.append(violation(exact(reverse_kl, dropped)[0] - math.log(2)))
        errors.append(violation(exact(forward_kl, unlikely)[0] - math.log(2)))
    for costs in (forward, reverse):
        errors += [less(a + 1.0, b) for a, b in pairwise(costs)]
    yield from each_form(worst(errors), forward_1=forward[-1], number=math.log(2))
