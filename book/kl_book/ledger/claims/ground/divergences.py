"""f-divergences written out: generators, divergences by name, and comparisons of printed expressions."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from kl_book.ledger.claims.ground import errors, sums
from kl_companion.divergences import W
from kl_companion.tabular import Problem

Pair = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


U = sympy.Symbol("u", positive=True)


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
    "Forward KL": lambda p, q: sums.forward_kl(p, q),
    "Reverse KL": lambda p, q: sums.reverse_kl(p, q),
    "Pearson": lambda p, q: ((p.exp() - q.exp()) ** 2 / q.exp()).sum(-1),
    "Neyman": lambda p, q: ((p.exp() - q.exp()) ** 2 / p.exp()).sum(-1),
    "Squared Hellinger": lambda p, q: 1 - ((p + q) / 2).exp().sum(-1),
    "Jensen-Shannon": _with_mixture,
    "Total variation": lambda p, q: (p.exp() - q.exp()).abs().sum(-1) / 2,
}


def divergence(f: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """sum Q f(P/Q) of the log-probs of P and Q."""
    return lambda p, q: (q.exp() * f((p - q).exp())).sum(-1)


def as_function(expr: sympy.Expr, symbol: sympy.Symbol) -> Callable[[torch.Tensor], torch.Tensor]:
    """A printed expression as a function of tensors."""
    return sympy.lambdify(symbol, expr, "torch")


def unequal(one: sympy.Expr, other: sympy.Expr) -> float:
    """0 if two expressions in w agree on both sides of w = 1, for every w; otherwise 1."""
    sides = (1 + U, 1 / (1 + U))
    return float(any(sympy.simplify((one - other).subs(W, s)) != 0 for s in sides))


def bias_against(estimator: Pair, truth: Pair, problem: Problem) -> float:
    """Error of "value and gradient of the estimator are those of the divergence"."""
    t = sums.terms(problem)
    value, slope = sums.exact(truth, problem)
    return errors.worst(
        (
            errors.apart(sums.mean(t.p, sums.values(estimator, problem)), value),
            errors.apart(sums.mean(t.p, sums.differentiated(estimator, problem)), slope),
        )
    )


def arguments_exchanged(d: Pair) -> Pair:
    """The divergence with its arguments exchanged."""
    return lambda p, q: d(q, p)


def amari(a: float) -> Pair:
    """4/(1 - a^2) (1 - sum P^((1 + a)/2) Q^((1 - a)/2))."""
    return lambda p, q: 4 / (1 - a**2) * (1 - ((1 + a) / 2 * p + (1 - a) / 2 * q).exp().sum(-1))
