"""Sections 1 to 4: two directions, three estimates and their values (wang2025choosing)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import sympy
import torch

from kl_companion.claims.ledger import Evidence, claim, excess, violation
from kl_companion.claims.off_policy import all_worlds, half_square, in_loss, near, rho, times_score
from kl_companion.claims.tang2025pitfalls.values import SUPPORT
from kl_companion.claims.worlds import (
    apart,
    differentiated,
    differs,
    exact,
    forward_kl,
    less,
    mean,
    reverse_kl,
    terms,
    two_policies,
    values,
    variance,
    worlds,
    worst,
)
from kl_companion.estimators.sampled import k_lambda
from kl_companion.tabular import Problem, bandit


def bias(estimator: str, problem: Problem) -> float:
    """Expected estimate minus KL(policy || reference)."""
    return float(mean(terms(problem).p, values(estimator, problem))) - exact(reverse_kl, problem)[0]


@claim("WZ-2.1-rho")
def ratio_of_value_one_keeps_the_score() -> Evidence:
    """On-policy the ratio is 1 and its gradient the score; off-policy its gradient is rho times the score."""
    errors = [apart(rho(p), 1.0) for p in worlds()]
    for problem in all_worlds():
        found = in_loss(lambda a, b: torch.ones_like(a), problem)
        errors += [apart(found, times_score(torch.ones(len(found)).double(), problem)), differs(found, 0.0)]
    return Evidence(worst(errors))


@claim("WZ-2.1-score0")
def score_has_mean_zero() -> Evidence:
    """E[s] = 0 under the policy."""
    return Evidence(worst(apart(mean(terms(p).p, terms(p).score), 0.0) for p in worlds()))


@claim("WZ-2.1-truegrads")
def gradients_of_both_divergences() -> Evidence:
    """grad KL(q||p) = E[k1 s] and grad KL(p||q) = E[(1 - p/q) s], against differentiated sums."""
    errors = []
    for problem in worlds():
        t = terms(problem)
        ratio = t.log_ratio.sum(-1)[:, None, None]
        errors.append(apart(mean(t.p, ratio * t.score), exact(reverse_kl, problem)[1]))
        errors.append(apart(mean(t.p, (1 - (-ratio).exp()) * t.score), exact(forward_kl, problem)[1]))
    return Evidence(worst(errors))


@claim("WZ-3.1-k1")
def log_ratio_is_unbiased_and_of_both_signs() -> Evidence:
    """E[k1] = KL; some samples are negative; relative to the KL its spread grows near the reference."""
    errors = []
    for problem in worlds():
        x = values("k1", problem)
        errors += [abs(bias("k1", problem)), less(float(x.min()), 0.0), less(0.0, float(x.max()))]
        spread = []
        for bound in (0.1, 0.01):
            close = near(problem, bound)
            spread.append(
                math.sqrt(variance(terms(close).p, values("k1", close))) / exact(reverse_kl, close)[0]
            )
        errors.append(less(2 * spread[0], spread[1]))
    return Evidence(worst(errors))


@claim("WZ-3.1-k2", how="symbols")
def half_square_agrees_to_second_order() -> Evidence:
    """The series of both generators in q/p - 1 have one second coefficient and another third one."""
    d = sympy.Symbol("d")
    log = sympy.log(1 + d)
    difference = sympy.series((1 + d) * (log**2 / 2 - log), d, 0, 4).removeO()
    second, third = (float(difference.coeff(d, k)) for k in (2, 3))
    errors = [abs(second), differs(third, 0.0)]  # the first coefficient multiplies E[q/p - 1] = 0
    errors += [differs(bias("k2", p), 0.0, by=1e-9) for p in worlds()]
    errors += [violation(-float(values("k2", p).min())) for p in worlds()]
    shares = []
    for problem in worlds():
        for bound in (0.02, 0.002):  # of the KL, the bias is no larger a share than the log-ratios are
            close = near(problem, bound)
            errors.append(violation(abs(bias("k2", close)) / exact(reverse_kl, close)[0] - bound))
        shares.append(bias("k2", problem) / exact(reverse_kl, problem)[0])
    errors.append(less(0.3, max(abs(s) for s in shares)))
    return Evidence(
        worst(errors),
        condition=(
            f"near is every log-ratio; in small worlds away from there the bias is {min(shares):.2f} to "
            f"{max(shares):.2f} times the KL, and the approximation not reliable"
        ),
    )


def _hessian(
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], problem: Problem
) -> torch.Tensor:
    """Second derivatives of an objective of whole sequences in the policy's logits, [params, params]."""
    ref_logp = problem.token_logp(problem.ref_logits).sum(-1)
    found = torch.autograd.functional.hessian(
        lambda theta: objective(problem.token_logp(theta).sum(-1), ref_logp), problem.logits
    )
    return found.reshape(problem.logits.numel(), -1)


@claim("WZ-3.1-fisher")
def one_expansion_around_the_reference() -> Evidence:
    """At q = p value and gradient of KL and E_q[k2] are 0, and both Hessians are the Fisher matrix."""
    errors = []
    for problem in worlds():
        at = problem._replace(logits=problem.ref_logits)
        scores = differentiated("k1", at).flatten(1)
        fisher = (terms(at).p[:, None] * scores).T @ scores
        for objective in (reverse_kl, half_square):
            value, gradient = exact(objective, at)
            errors += [abs(value), apart(gradient, 0.0), apart(_hessian(objective, at), fisher)]
        errors.append(differs(_hessian(reverse_kl, problem), _hessian(half_square, problem)))
    return Evidence(worst(errors))


@claim("WZ-3.1-lambda")
def every_multiple_of_the_control_variate_is_unbiased() -> Evidence:
    """E[p/q - 1] = 0, and its covariance with k1 is minus the sum of both divergences."""
    inside = []
    for problem in worlds():
        t, x = terms(problem), values("k1", problem)
        ratio = (-x).exp()
        inside += [abs(bias(f"k_lambda({lam:g})", problem)) for lam in (-1.0, 0.5, 3.0)]
        both = exact(reverse_kl, problem)[0] + exact(forward_kl, problem)[0]
        inside.append(apart((t.p * x * (ratio - 1)).sum(), -both) / (1 + both))
    logp, ref_logp = torch.tensor([0.0]).double(), torch.tensor([0.5]).double().log()
    kl = float(reverse_kl(logp, ref_logp))  # the other arm has probability 0 and is never sampled
    found = float(k_lambda(0.5)(logp, ref_logp)[0])
    return Evidence(
        max(worst(inside), abs(found - kl)),
        inside=worst(inside),
        condition=f"{SUPPORT}; the covariance is then minus the sum of both divergences, never positive",
        counterexample=(
            f"policy (1, 0), reference (1/2, 1/2), lambda 1/2: the KL is {kl:.3f}, the estimate {found:.3f}"
        ),
    )


@claim("WZ-3.1-k3")
def reduced_value_is_a_bregman_gap() -> Evidence:
    """k3 is -log above its tangent at 1: never negative, and half of (p/q - 1)^2 near 1."""
    w = torch.logspace(-4, 3, 400, dtype=torch.float64)
    k3 = w - 1 - w.log()
    gap = -w.log() - (0.0 + -1.0 * (w - 1))
    errors = [apart(k3, gap), violation(-float(k3.min()))]
    for eps in (1e-2, -1e-2, 1e-3):
        share = (eps - math.log1p(eps)) / (eps**2 / 2)
        errors.append(violation(abs(share - 1) - abs(eps)))
    for problem in worlds():
        x = values("k1", problem)
        errors.append(apart(values("k3", problem), (-x).exp() - 1 + x) / float((-x).exp().max()))
    return Evidence(worst(errors))


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
        square = (
            sympy.exp(shift**2)
            - 1
            + 2 * moment(log_ratio, shift)
            - 2 * moment(log_ratio)
            + moment(log_ratio**2)
        )
    else:
        x = log_ratio if name == "k1" else log_ratio**2 / 2
        first, square = moment(x), moment(x**2)
    return float((first - kl) / kl), float(sympy.sqrt(square - first**2) / kl)


def _row(name: str, shift: sympy.Rational, printed_bias: str, printed_spread: str) -> Evidence:
    bias_over_kl, spread = _gaussian(name, shift)
    return Evidence(
        max(excess(bias_over_kl, printed_bias), excess(spread, printed_spread)),
        condition=f"exactly {bias_over_kl:.6f} and {spread:.4f}",
    )


@claim("WZ-table-largeKL-k1", how="symbols")
def table_large_k1() -> Evidence:
    """k1 between unit Gaussians one apart."""
    return _row("k1", sympy.Integer(1), "0", "2")


@claim("WZ-table-largeKL-k2", how="symbols")
def table_large_k2() -> Evidence:
    """k2 between unit Gaussians one apart."""
    return _row("k2", sympy.Integer(1), "0.25", "1.73")


@claim("WZ-table-largeKL-k3", how="symbols")
def table_large_k3() -> Evidence:
    """k3 between unit Gaussians one apart."""
    return _row("k3", sympy.Integer(1), "0", "1.7")


@claim("WZ-table-smallKL-k1", how="symbols")
def table_small_k1() -> Evidence:
    """k1 between unit Gaussians 0.1 apart."""
    return _row("k1", sympy.Rational(1, 10), "0", "20")


@claim("WZ-table-smallKL-k2", how="symbols")
def table_small_k2() -> Evidence:
    """k2 between unit Gaussians 0.1 apart."""
    return _row("k2", sympy.Rational(1, 10), "0.002", "1.42")


@claim("WZ-table-smallKL-k3", how="symbols")
def table_small_k3() -> Evidence:
    """k3 between unit Gaussians 0.1 apart."""
    return _row("k3", sympy.Rational(1, 10), "0", "1.42")


def spread(name: str, problem: Problem) -> float:
    """Variance of the value of an estimate."""
    return variance(terms(problem).p, values(name, problem))


@cache
def far_apart() -> Problem:
    """The smallest world where both k2 and k3 have the larger variance."""
    return two_policies((0.99, 0.01), (0.5, 0.5))


def excess_of_k3(problem: Problem) -> float:
    """Error of "Var k3 - Var k1 = chi2(p||q) - 2 [KL(q||p) + KL(p||q)]", relative."""
    chi2 = float(mean(terms(problem).p, (-2 * values("k1", problem)).exp())) - 1
    both = exact(reverse_kl, problem)[0] + exact(forward_kl, problem)[0]
    return abs(spread("k3", problem) - spread("k1", problem) - (chi2 - 2 * both)) / (1 + chi2)


@cache
def one_sided() -> tuple[Problem, ...]:
    """p/q <= 2, while q/p is large on some arms."""
    pairs = (((0.5, 0.5), (0.99, 0.01)), ((0.4, 0.4, 0.2), (0.2, 0.799, 0.001)), ((0.7, 0.3), (0.5, 0.5)))
    return tuple(two_policies(q, p) for q, p in pairs)


WITHIN = {"k2": 1.0, "k3": math.log(2)}  # largest |k1| for which the variance cannot grow


def lower_spread(*names: str) -> tuple[float, float]:
    """By how much the variance of ``names`` exceeds that of k1: anywhere, and where |k1| is small enough.

    The derivative of k2 in k1 is k1 and that of k3 is 1 - p/q; where these are at most 1 in size, the
    variance cannot grow. For k3, the exact difference is chi2(p||q) - 2 [KL(q||p) + KL(p||q)].
    """
    far = (*worlds(), far_apart())
    printed = violation(*(spread(n, p) - spread("k1", p) for n in names for p in far))
    inside = [spread(n, q) - spread("k1", q) for n in names for q in (near(p, WITHIN[n]) for p in worlds())]
    if "k3" in names:
        inside += [excess_of_k3(p) for p in far]
        inside += [spread("k3", p) - spread("k1", p) for p in one_sided()]
    return printed, violation(*inside)


def spreads(problem: Problem) -> str:
    """The three variances of a world in words."""
    return ", ".join(f"{n} {spread(n, problem):.3f}" for n in ("k1", "k2", "k3"))


ORDER = {
    "k2": "|log(p/q)| <= 1 for everything that is sampled is enough",
    "k3": (
        "exactly where chi2(p||q) <= 2 [KL(q||p) + KL(p||q)], for which p/q <= 2 for everything that is "
        "sampled "
        "is enough"
    ),
}


def table_value(name: str, *others: str, extra: float | None = None) -> Evidence:
    """Evidence that the variances of ``others`` stay below that of k1, and that ``extra`` is no error.

    Without ``extra`` it is the bias of ``name``: 0, or not 0 for k2. No sample of ``others`` is negative.
    """
    if extra is None:
        found = [bias(name, p) for p in worlds()]
        extra = worst(differs(b, 0.0, by=1e-9) if name == "k2" else abs(b) for b in found)
    extra = max(extra, violation(*(-float(values(n, p).min()) for n in others for p in worlds())))
    printed, inside = lower_spread(*others)
    return Evidence(
        max(extra, printed),
        inside=max(extra, inside),
        condition="; ".join(f"for {n}: {ORDER[n]}" for n in others),
        counterexample=f"policy (0.99, 0.01), reference (1/2, 1/2): variances {spreads(far_apart())}",
    )


@claim("WZ-table-value-k1")
def log_ratio_has_the_high_variance() -> Evidence:
    """Unbiased, with a variance above that of k2 and k3."""
    return table_value("k1", "k2", "k3")


@claim("WZ-table-value-k2")
def half_square_has_a_low_variance() -> Evidence:
    """Biased, with a variance below that of k1."""
    return table_value("k2", "k2")


@claim("WZ-table-value-k3")
def reduced_value_has_a_low_variance() -> Evidence:
    """Unbiased, with a variance below that of k1."""
    return table_value("k3", "k3")


@claim("WZ-4-blowup")
def reduced_value_blows_up_far_away() -> Evidence:
    """Where p/q is large on a rare sample, the variance of k3 passes that of k1 and has no bound."""
    found = [two_policies((1 - d, d), (0.5, 0.5)) for d in (1e-2, 1e-4, 1e-6)]
    errors = [less(spread("k1", p), spread("k3", p)) for p in found]
    errors += [excess_of_k3(p) for p in found]
    errors += [less(50 * spread("k3", a), spread("k3", b)) for a, b in itertools.pairwise(found)]
    return Evidence(worst(errors))


@claim("WZ-4-safest")
def reduced_value_is_the_safest_near_the_reference() -> Evidence:
    """Where p/q <= 2, k3 has no bias and, of both unbiased values, the smaller variance."""
    errors = [abs(bias("k3", p)) for p in worlds()]
    closer = [near(bandit(v, seed=s, scale=2.0), math.log(2)) for v in (3, 10) for s in range(20)]
    errors += [violation(spread("k3", p) - spread("k1", p)) for p in (*closer, *one_sided())]
    return Evidence(worst(errors), condition="p/q <= 2 for everything that is sampled")


@claim("WZ-forward-IS")
def forward_value_from_samples_of_the_policy() -> Evidence:
    """E[(p/q) log(p/q)] under the policy is KL(p||q)."""
    inside = []
    for problem in worlds():
        x = -values("k1", problem)
        inside.append(apart(mean(terms(problem).p, x.exp() * x), exact(forward_kl, problem)[0]))
    logp, ref_logp = torch.tensor([0.0]).double(), torch.tensor([0.5]).double().log()
    found = float((ref_logp - logp).exp() * (ref_logp - logp))
    return Evidence(
        math.inf if math.isfinite(found) else worst(inside),  # KL(p||q) is infinite there
        inside=worst(inside),
        condition=SUPPORT,
        counterexample=(
            f"policy (1, 0), reference (1/2, 1/2): KL(p||q) is infinite, every sample says {found:.3f}"
        ),
    )
