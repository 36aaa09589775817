"""Appendix H: any f-divergence, sampled or with an exact head (emapg2026).

The generators are written out here, and so are the divergences that their names stand for.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from kl_companion.claims.emapg2026.splits import Split, averaged, subsets
from kl_companion.claims.emapg2026.table_one import k4, k5, score_ratio
from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.worlds import (
    apart,
    bandits,
    differentiated,
    exact,
    field,
    forward_kl,
    mean,
    reverse_kl,
    terms,
    two_policies,
    values,
    variance,
    worst,
)
from kl_companion.divergences import W
from kl_companion.estimators.sampled import kf_plus_plus
from kl_companion.tabular import Problem

Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
U = sympy.Symbol("u", positive=True)
FULL = "policy and reference give every token probability; where f has a kink (t = 1), one of its slopes"


def power(a: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """(t^a - 1 - a (t - 1)) / (a (a - 1))."""
    return lambda t: (t**a - 1 - a * (t - 1)) / (a * (a - 1))


GENERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reverse_kl": lambda t: t * t.log(),
    "forward_kl": lambda t: -t.log(),
    "pearson": lambda t: (t - 1) ** 2,
    "neyman": lambda t: (t - 1) ** 2 / t,
    "squared_hellinger": lambda t: (t.sqrt() - 1) ** 2 / 2,
    "jensen_shannon": lambda t: (t * t.log() - (t + 1) * ((t + 1) / 2).log()) / 2,
    "total_variation": lambda t: (t - 1).abs() / 2,
    **{f"power({a})": power(a) for a in (-1.0, 0.5, 1.5, 3.0)},
}


def _with_mixture(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    middle = torch.logaddexp(p, q) - torch.log(torch.tensor(2.0, dtype=torch.float64))
    return (p.exp() * (p - middle) + q.exp() * (q - middle)).sum(-1) / 2


# what a name stands for, as a function of the log-probs of P and Q
NAMED: dict[str, Pair] = {
    "Forward KL": lambda p, q: forward_kl(p, q),
    "Reverse KL": lambda p, q: reverse_kl(p, q),
    "Pearson": lambda p, q: ((p.exp() - q.exp()) ** 2 / q.exp()).sum(-1),
    "Neyman": lambda p, q: ((p.exp() - q.exp()) ** 2 / p.exp()).sum(-1),
    "Squared Hellinger": lambda p, q: 1 - ((p + q) / 2).exp().sum(-1),
    "Jensen-Shannon": _with_mixture,
    "Total variation": lambda p, q: (p.exp() - q.exp()).abs().sum(-1) / 2,
}


def divergence(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """sum Q f(P/Q) of the log-probs of P and Q."""
    return lambda p, q: (q.exp() * f((p - q).exp())).sum(-1)


def function(expr: sympy.Expr, symbol: sympy.Symbol) -> Callable[[torch.Tensor], torch.Tensor]:
    """A printed expression as a function of tensors."""
    return sympy.lambdify(symbol, expr, "torch")


def unequal(one: sympy.Expr, other: sympy.Expr) -> float:
    """0 if two expressions in w agree on both sides of w = 1, for every w; otherwise 1."""
    sides = (1 + U, 1 / (1 + U))
    return float(any(sympy.simplify((one - other).subs(W, s)) != 0 for s in sides))


def sampled(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """r w f(1/w), eq (115)."""
    return lambda p, q: score_ratio(p) * (q - p).exp() * f((p - q).exp())


def unbiased(estimator: Pair, truth: Pair, problem: Problem) -> float:
    """Error of "value and gradient of the estimator are those of the divergence"."""
    t = terms(problem)
    value, slope = exact(truth, problem)
    return worst(
        (
            apart(mean(t.p, values(estimator, problem)), value),
            apart(mean(t.p, differentiated(estimator, problem)), slope),
        )
    )


@claim("EMA-eq109-114")
def forms_of_a_divergence() -> Evidence:
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
    return Evidence(worst(errors), condition=FULL)


@claim("EMA-eq115-119")
def any_divergence_from_samples() -> Evidence:
    """r w f(1/w) is sg(w) f(1/w), sample by sample, and unbiased in value and gradient."""
    errors = []
    for problem in bandits():
        for name, f in GENERATORS.items():
            estimator, other = sampled(f), _detached(f)
            errors += [
                unbiased(estimator, divergence(f), problem),
                apart(values(estimator, problem), values(other, problem)),
                apart(differentiated(estimator, problem), differentiated(other, problem)),
            ]
            if not name.startswith("power"):
                errors.append(unbiased(kf_plus_plus(name, "generic"), divergence(f), problem))
    return Evidence(worst(errors), condition=FULL)


def _detached(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """sg(w) f(1/w), eq (116)."""
    return lambda p, q: (q - p).exp().detach() * f((p - q).exp())


def _entry(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """Q f(P/Q)."""
    return lambda p, q: q.exp() * f((p - q).exp())


@claim("EMA-eq120-126")
def any_divergence_with_a_head() -> Evidence:
    """Head of entries Q f(P/Q), tail r w f(1/w) with the same f: unbiased for every set of tokens."""
    errors = []
    for problem in (*bandits()[:6], bandits()[8]):
        for f in GENERATORS.values():
            split = Split(_entry(f), sampled(f))
            right, slope = exact(divergence(f), problem)
            for chosen in subsets(len(terms(problem).p)):
                value, gradient = averaged(split, chosen, problem)
                errors += [apart(value, right), apart(gradient, slope)]
    return Evidence(worst(errors), condition=f"head and tail have the same f; {FULL}")


def detached_forward(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """sg(w) log w."""
    return (q - p).exp().detach() * (q - p)


def _baseline(more: torch.Tensor, less: torch.Tensor, problem: Problem) -> tuple[float, float, float]:
    """Variances with two coefficients of the score, and E[(more^2 - less^2) |s|^2]."""
    t = terms(problem)
    x, y = (c[:, None, None] * t.score for c in (more, less))
    saved = float(mean(t.p, (more**2 - less**2) * t.score.flatten(1).square().sum(-1)))
    return variance(t.p, x), variance(t.p, y), saved


@claim("EMA-H-note1")
def log_r_is_a_baseline() -> Evidence:
    """K5 = sg(w) log w + log r: log r has value 0, its mean gradient is 0, and E[w] = 1; less variance?"""
    always, printed, inside = [], [], []
    small = two_policies((0.9, 0.1), (0.99, 0.01))
    for problem in (*bandits(), small):
        t = terms(problem)
        w = (-t.log_ratio.sum(-1)).exp()
        more = differentiated(k5, problem) - differentiated(detached_forward, problem)
        always += [apart(mean(t.p, w), 1.0), apart(values(k5, problem), values(detached_forward, problem))]
        always.append(apart(more, t.score))
        always.append(apart(mean(t.p, more), 0.0))
        before, after, saved = _baseline(-w, 1 - w, problem)
        printed.append(violation(after - before))
        inside.append(violation(after - before - 1e-12) if saved >= 0 else 0.0)
        inside.append(violation(abs(before - after - saved) - 1e-12 * (1 + before)))
    return Evidence(  # the last problem is the small one
        worst([*always, *printed]),
        inside=worst([*always, *inside]),
        condition=(
            "over the whole vocabulary the baseline is free; it lowers the variance exactly where "
            "2 E_ref|s|^2 >= E_pi|s|^2. Over a tail its mean is not 0, which is what biases algorithm 2"
        ),
        counterexample=(
            f"policy (0.9, 0.1), reference (0.99, 0.01): gradient variance {after:.4f} with the baseline, "
            f"{before:.4f} without"
        ),
    )


def log_ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """-log w."""
    return p - q


@claim("EMA-H-note2")
def the_mean_of_the_log_ratio_is_the_kl() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="proof",
        counterexample=(
            "policy (3/4, 1/4), reference (1/2, 1/2): the mean of -log w is "
            f"{float(mean(terms(small).p, terms(small).log_ratio.sum(-1))):.3f}, the KL"
        ),
        correction="E[-log w] is the KL; what is 0 is the mean of its gradient, the score, as said beside it",
    )


@claim("EMA-H-note3")
def detaching_the_log_ratio() -> Evidence:
    """K4 against r (-log w): one mean gradient, and less variance where E[(2 l + 1) |s|^2] >= 0."""
    always, printed, inside = [], [], []
    small = two_policies((0.99, 0.01), (0.96, 0.04))
    for problem in (*bandits(), small):
        log_t = terms(problem).log_ratio.sum(-1)
        for estimator in (k4, sampled(GENERATORS["reverse_kl"])):
            always.append(unbiased(estimator, reverse_kl, problem))
        before, after, saved = _baseline(log_t + 1, log_t, problem)
        printed.append(violation(after - before))
        inside.append(violation(after - before - 1e-12) if saved >= 0 else 0.0)
        inside.append(violation(abs(before - after - saved) - 1e-12 * (1 + before)))
    return Evidence(  # the last problem is the small one
        worst([*always, *printed]),
        inside=worst([*always, *inside]),
        condition=(
            "the whole vocabulary is sampled (no head) and E_pi[(2 l + 1) |s|^2] >= 0 with l = -log w, as "
            "where no token that is sampled has pi < 0.61 pi_ref"
        ),
        counterexample=(
            f"policy (0.99, 0.01), reference (0.96, 0.04): gradient variance {after:.4f} with the "
            f"stop-gradient, {before:.4f} without"
        ),
    )
