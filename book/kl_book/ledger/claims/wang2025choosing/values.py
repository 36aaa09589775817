"""Sections 2 to 4: three estimates and their values (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import sympy
import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import (
    Found,
    at_most,
    differs,
    less,
    numbers,
    printed,
    regardless,
    same,
)
from kl_book.ledger.claims.ground import off_policy, spreads, sums
from kl_book.ledger.claims.ground.errors import apart, excess, hedged
from kl_book.ledger.claims.ground.learning import value_is_biased, value_is_unbiased
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import all_worlds, hedge_bandits, hedge_trees, near, worlds
from kl_book.ledger.claims.standard import HEDGE_SHARE
from kl_companion.tabular import bandit


@claim("WZ-2.1-rho", over=each(all_worlds))
def ratio_of_value_one_keeps_the_score(w: Enumeration) -> Iterator[Found]:
    """On-policy the ratio is 1 and its gradient the score; off-policy its gradient is rho times the score."""
    if w.problem.behavior_logits is None:
        yield same(w.rho, 1.0)
    gradient = w.in_loss(lambda a, b: torch.ones_like(a))
    yield same(gradient, w.times_score(torch.ones_like(w.p)))
    yield differs(gradient, 0.0)


@claim("WZ-2.1-score0", over=each(worlds))
def score_has_mean_zero(w: Enumeration) -> Iterator[Found]:
    """E[s] = 0 under the policy."""
    yield same(w.E(w.s), 0.0)


@claim("WZ-2.1-truegrads", over=each(worlds))
def gradients_of_both_divergences(w: Enumeration) -> Iterator[Found]:
    """grad KL(q||p) = E[k1 s] and grad KL(p||q) = E[(1 - p/q) s], against differentiated sums."""
    yield same(w.Es(w.l), w.d_kl)
    yield same(w.Es(1 - (-w.l).exp()), w.d_forward)


@claim("WZ-3.1-k1", over=each(worlds))
def log_ratio_is_unbiased_and_of_both_signs(w: Enumeration) -> Iterator[Found]:
    """E[k1] = KL; some samples are negative; relative to the KL its spread grows near the reference."""
    yield same(w.bias("k1"), 0.0)
    yield less(float(w.value("k1").min()), 0.0)
    yield less(0.0, float(w.value("k1").max()))
    wide, narrow = (math.sqrt(x.var(x.value("k1"))) / x.kl for x in (w.near(0.1), w.near(0.01)))
    yield less(2 * wide, narrow)


@claim("WZ-3.1-k2")
def half_square_agrees_to_second_order() -> Iterator[Found]:
    """The series of both generators in q/p - 1 have one second coefficient and another third one."""
    d = sympy.Symbol("d")
    log = sympy.log(1 + d)
    difference = sympy.series((1 + d) * (log**2 / 2 - log), d, 0, 4).removeO()
    yield same(float(difference.coeff(d, 2)), 0.0)  # the first coefficient multiplies E[q/p - 1] = 0
    yield differs(float(difference.coeff(d, 3)), 0.0)
    shares = []
    for w in each(worlds)():
        yield differs(w.bias("k2"), 0.0, by=1e-9)
        yield at_most(0.0, w.value("k2"))
        for bound in (0.02, 0.002):  # of the KL, the bias is no larger a share than the log-ratios are
            yield less(abs(w.near(bound).bias("k2")) / w.near(bound).kl, bound, by=0.0)
        shares.append(w.bias("k2") / w.kl)
    yield less(0.3, max(abs(s) for s in shares))
    yield numbers(least=min(shares), most=max(shares))


def _hessian(objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], w: Enumeration) -> torch.Tensor:
    """Second derivatives of an objective of whole sequences in the policy's logits, [params, params]."""
    ref_logp = w.problem.token_logp(w.problem.ref_logits).sum(-1)
    hessian = torch.autograd.functional.hessian(
        lambda theta: objective(w.problem.token_logp(theta).sum(-1), ref_logp), w.problem.logits
    )
    return hessian.reshape(w.problem.logits.numel(), -1)


@claim("WZ-3.1-fisher", over=each(worlds))
def one_expansion_around_the_reference(w: Enumeration) -> Iterator[Found]:
    """At q = p value and gradient of KL and E_q[k2] are 0, and both Hessians are the Fisher matrix."""
    at = w.replace(logits=w.problem.ref_logits)
    scores = at.slope("k1").flatten(1)
    for objective in (sums.reverse_kl, sums.half_square):
        value, gradient = sums.exact(objective, at.problem)
        yield same(value, 0.0)
        yield same(gradient, 0.0)
        yield same(_hessian(objective, at), (at.p[:, None] * scores).T @ scores)
    yield differs(_hessian(sums.reverse_kl, w), _hessian(sums.half_square, w))


@claim("WZ-3.1-lambda", over=each(worlds))
def every_multiple_of_the_control_variate_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """E[p/q - 1] = 0, and its covariance with k1 is minus the sum of both divergences."""
    variate, both = (-w.value("k1")).exp() - 1, w.kl + w.forward
    yield same(w.E(variate), 0.0)
    for lam in (-1.0, 0.5, 3.0):
        yield same(w.bias(f"k_lambda({lam:g})"), 0.0)
    yield printed(apart(w.E(w.value("k1") * variate), -both) / (1 + both))


@claim("WZ-3.1-k3")
def reduced_value_is_a_bregman_gap() -> Iterator[Found]:
    """k3 is -log above its tangent at 1: never negative, and half of (p/q - 1)^2 near 1."""
    w = torch.logspace(-4, 3, 400, dtype=torch.float64)
    k3 = w - 1 - w.log()
    yield same(k3, -w.log() - (0.0 + -1.0 * (w - 1)))
    yield at_most(0.0, k3)
    for eps in (1e-2, -1e-2, 1e-3):
        share = (eps - math.log1p(eps)) / (eps**2 / 2)
        yield less(abs(share - 1), abs(eps), by=0.0)
    for world in each(worlds)():
        x = world.value("k1")
        yield printed(apart(world.value("k3"), (-x).exp() - 1 + x) / float((-x).exp().max()))


@cache
def _gaussian(name: str, shift: sympy.Rational) -> tuple[float, float]:
    """Bias and standard deviation over the KL of an estimate between N(0, 1) and N(shift, 1), exact.

    exp(-k1) is the density of the reference over that of the policy: it moves a mean to N(shift, 1), and
    its square has mean exp(shift^2).
    """
    z = sympy.Symbol("z")
    kl = shift**2 / 2
    log_ratio = kl - shift * z

    def moment(polynomial: sympy.Expr, center: sympy.Expr = sympy.S.Zero) -> sympy.Expr:
        powers = sympy.Poly(sympy.expand(polynomial.subs(z, z + center)), z).terms()
        return sum(c * (sympy.factorial2(k - 1) if k % 2 == 0 else 0) for (k,), c in powers)

    if name == "k3":
        first = moment(log_ratio)
        moved = 2 * moment(log_ratio, shift) - 2 * moment(log_ratio)
        square = sympy.exp(shift**2) - 1 + moved + moment(log_ratio**2)
    else:
        x = log_ratio if name == "k1" else log_ratio**2 / 2
        first, square = moment(x), moment(x**2)
    return float((first - kl) / kl), float(sympy.sqrt(square - first**2) / kl)


def estimate_between_gaussians(row: tuple[str, sympy.Rational, str, str]) -> Iterator[Found]:
    """Bias and standard deviation, both over the KL, round to what is printed."""
    name, shift, printed_bias, printed_spread = row
    bias, spread = _gaussian(name, shift)
    yield printed(excess(bias, printed_bias))
    yield printed(excess(spread, printed_spread))
    yield numbers(bias=bias, spread=spread)


LARGE, SMALL = sympy.Integer(1), sympy.Rational(1, 10)
TABLE = {
    "WZ-table-largeKL-k1": [("k1", LARGE, "0", "2")],
    "WZ-table-largeKL-k2": [("k2", LARGE, "0.25", "1.73")],
    "WZ-table-largeKL-k3": [("k3", LARGE, "0", "1.7")],
    "WZ-table-smallKL-k1": [("k1", SMALL, "0", "20")],
    "WZ-table-smallKL-k2": [("k2", SMALL, "0.002", "1.42")],
    "WZ-table-smallKL-k3": [("k3", SMALL, "0", "1.42")],
}
claim_rows(estimate_between_gaussians, TABLE)


@claim("WZ-forward-IS", over=each(worlds))
def forward_value_from_samples_of_the_policy(w: Enumeration) -> Iterator[Found]:
    """E[(p/q) log(p/q)] under the policy is KL(p||q)."""
    x = -w.value("k1")
    yield same(w.E(x.exp() * x), w.forward)


def bias_and_order_of_variances(row: tuple[str, tuple[str, ...]]) -> Iterator[Found]:
    """k1 and k3 are unbiased and k2 is biased; the variances of the estimates named are below that of k1."""
    name, lower = row
    yield from regardless(value_is_biased(name) if name == "k2" else value_is_unbiased(name))
    yield from spreads.smaller_variances(*lower)


QUICK_TABLE: dict[str, list[Any]] = {
    "WZ-table-value-k1": [("k1", ("k2", "k3"))],
    "WZ-table-value-k2": [("k2", ("k2",))],
    "WZ-table-value-k3": [("k3", ("k3",))],
}
claim_rows(bias_and_order_of_variances, QUICK_TABLE)


@words(*QUICK_TABLE, "WZ-9.3-k1", "WZ-9.3-k3")
def _far_apart() -> dict[str, Any]:
    w = Enumeration(spreads.far_apart())
    return {k: w.var(w.value(k)) for k in ("k1", "k2", "k3")} | {"bound": spreads.K3_BOUND}


@claim("WZ-4-blowup")
def reduced_value_blows_up_far_away() -> Iterator[Found]:
    """Where p/q is large on a rare sample, the variance of k3 passes that of k1 and has no bound."""
    rare = [two((1 - d, d), (0.5, 0.5)) for d in (1e-2, 1e-4, 1e-6)]
    for w in rare:
        yield less(w.var(w.value("k1")), w.var(w.value("k3")))
        yield same(spreads.excess_of_k3(w.problem), 0.0)
    first, second, third = (w.var(w.value("k3")) for w in rare)
    yield less(50 * first, second)
    yield less(50 * second, third)


@claim("WZ-4-safest")
def reduced_value_is_the_safest_near_the_reference() -> Iterator[Found]:
    """With p/q bounded k3 has no bias and, of both unbiased values, the smaller variance; often elsewhere."""
    yield printed(value_is_unbiased("k3"))
    closer = [near(bandit(v, seed=s, scale=2.0), spreads.WITHIN["k3"]) for v in (3, 10) for s in range(20)]
    yield printed(off_policy.share_of_cases(spreads.larger("k3", p) for p in (*closer, *spreads.one_sided())))
    yield printed(float(not spreads.larger("k3", spreads.just_beyond())))
    smaller: dict[bool, list[bool]] = {True: [], False: []}
    for w in each(hedge_bandits, hedge_trees)():
        smaller[w.kl <= 0.1].append(not spreads.larger("k3", w.problem))
    yield printed(hedged(smaller[True]))
    yield numbers(HEDGE_SHARE=HEDGE_SHARE, K3_BOUND=spreads.K3_BOUND)
    yield numbers(near_smaller=sum(smaller[True]), near=len(smaller[True]))
    yield numbers(far_smaller=sum(smaller[False]), far=len(smaller[False]))
