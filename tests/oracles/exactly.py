"""Estimators and divergences of given numbers, in 60 digits; shares no code with the package.

Every function is written in u = log w = log(reference/policy). Inputs are taken as the numbers that they are
after rounding, so what a result may differ by is what its own arithmetic rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import exp, expm1, fabs, inf, log, mpf, sign, sqrt

Function = Callable[[mpf], mpf]

# f(t), as it is usually written, and f'(1), which the normalized form takes off
GENERATORS: dict[str, tuple[Function, mpf]] = {
    "reverse_kl": (lambda t: t * log(t), mpf(1)),
    "forward_kl": (lambda t: -log(t), mpf(-1)),
    "jensen_shannon": (lambda t: (t * log(t) - (t + 1) * log((t + 1) / 2)) / 2, mpf(0)),
    "squared_hellinger": (lambda t: (sqrt(t) - 1) ** 2 / 2, mpf(0)),
    "pearson": (lambda t: (t - 1) ** 2, mpf(0)),
    "neyman": (lambda t: (t - 1) ** 2 / t, mpf(0)),
    "total_variation": (lambda t: fabs(t - 1) / 2, mpf(0)),
    "amari_alpha(0.5)": (lambda t: mpf(16) / 3 * (1 - t ** (mpf(3) / 4)), mpf(-4)),
    "power_divergence(1.5)": (lambda t: (t ** mpf(1.5) - 1 - mpf(1.5) * (t - 1)) / mpf(0.75), mpf(0)),
}
SLOPES: dict[str, Function] = {  # f'(t) with f'(1) = 0
    "reverse_kl": log,
    "forward_kl": lambda t: 1 - 1 / t,
    "jensen_shannon": lambda t: log(2 * t / (t + 1)) / 2,
    "squared_hellinger": lambda t: (1 - 1 / sqrt(t)) / 2,
    "pearson": lambda t: 2 * (t - 1),
    "neyman": lambda t: 1 - 1 / t**2,
    "total_variation": lambda t: sign(t - 1) / 2,
    "amari_alpha(0.5)": lambda t: 4 - 4 / t ** (mpf(1) / 4),
    "power_divergence(1.5)": lambda t: 2 * (sqrt(t) - 1),
}
# f(0) and the limit of f(t)/t at infinity, of the normalized generator
EDGES: dict[str, tuple[mpf, mpf]] = {
    "reverse_kl": (mpf(1), inf),
    "forward_kl": (inf, mpf(1)),
    "jensen_shannon": (log(2) / 2, log(2) / 2),
    "squared_hellinger": (mpf(1) / 2, mpf(1) / 2),
    "pearson": (mpf(1), inf),
    "neyman": (inf, mpf(1)),
    "total_variation": (mpf(1) / 2, mpf(1) / 2),
    "amari_alpha(0.5)": (mpf(4) / 3, mpf(4)),
    "power_divergence(1.5)": (mpf(2) / 3, inf),
}


def normalized(name: str) -> Function:
    """f with f(1) = f'(1) = 0."""
    f, slope = GENERATORS[name]
    return lambda t: f(t) - slope * (t - 1)


def _of_samples() -> dict[str, tuple[Function, Function]]:
    """Value, and derivative with respect to log policy, of every estimator that reads samples."""
    found: dict[str, tuple[Function, Function]] = {
        "k1": (lambda u: -u, lambda u: mpf(1)),
        "k2": (lambda u: u**2 / 2, lambda u: -u),
        "k3": (lambda u: expm1(u) - u, lambda u: -expm1(u)),
        "k3_plus_plus": (lambda u: expm1(u) - u, lambda u: -u),
        "k4": (lambda u: -u, lambda u: -u),
        "k5": (lambda u: u * exp(u), lambda u: 1 - exp(u)),
        "k_lambda(0.5)": (lambda u: expm1(u) / 2 - u, lambda u: 1 - exp(u) / 2),
    }
    for name, slope in SLOPES.items():
        f = normalized(name)
        found[f"kf_plus_plus({name})"] = (
            lambda u, f=f: exp(u) * f(exp(-u)),
            lambda u, slope=slope: slope(exp(-u)),
        )
    return found


OF_SAMPLES = _of_samples()


def entry(name: str, log_p: mpf, log_q: mpf) -> mpf:
    """What one outcome adds to D_f(P || Q): Q f(P/Q), also where P or Q is zero."""
    at_zero, at_infinity = EDGES[name]
    if log_p == -inf or log_q == -inf:
        mass = exp(log_q if log_p == -inf else log_p)
        return mpf(0) if mass == 0 else mass * (at_zero if log_p == -inf else at_infinity)
    return exp(log_q) * normalized(name)(exp(log_p - log_q))
