"""Table 5, row by row, and the generators that the source's tables give one name (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.divergences import (
    NAMED,
    Pair,
    amari,
    as_function,
    bias_against,
    divergence,
    unequal,
)
from kl_book.ledger.claims.ground.errors import apart, worst
from kl_book.ledger.claims.ground.estimates import detached_forward, score_ratio
from kl_book.ledger.claims.ground.printed import TABLE_5, TABLES, Printed, alpha_5, alpha_9
from kl_book.ledger.claims.ground.sums import differentiated, exact, terms, values
from kl_book.ledger.claims.ground.worlds import bandits
from kl_companion.divergences import T, W
from kl_companion.tabular import Problem


def _times_ratio(value: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """r times a function of w."""
    return lambda p, q: score_ratio(p) * value((q - p).exp())


def table_5_row(name: str, row: Printed, meaning: Pair) -> float:
    """Error of a row: f generates what its name says, and the expression beside it is sg(w) f(1/w)."""
    f, value = as_function(row.f, T), as_function(row.in_w, W)
    errors = [unequal(row.in_w, W * row.f.subs(T, 1 / W))]
    # the first row is printed with its own stop-gradient, the others as r times their value
    estimator = detached_forward if name == "Forward KL" else _times_ratio(value)
    for problem in bandits():
        errors.append(apart(exact(divergence(f), problem)[0], exact(meaning, problem)[0]))
        errors.append(bias_against(estimator, divergence(f), problem))
    return worst(errors)


def _row_of_table_5(name: str) -> Callable[[], Evidence]:
    return lambda: Evidence(table_5_row(name, TABLE_5[name], NAMED[name]))


for _id, _name in {
    "FKL": "Forward KL",
    "RKL": "Reverse KL",
    "Pearson": "Pearson",
    "Hellinger": "Squared Hellinger",
    "JS": "Jensen-Shannon",
    "TV": "Total variation",
}.items():
    claim(f"EMA-tab5-{_id}")(_row_of_table_5(_name))


@claim("EMA-tab5-Neyman")
def neyman_generator() -> Iterator[Found]:
    """Pearson's f beside Neyman's estimator; Neyman's f is (t - 1)^2 / t, as in tables 6 and 9."""
    row = TABLE_5["Neyman"]
    right = row._replace(f=(T - 1) ** 2 / T)
    other = W * row.f.subs(T, 1 / W)
    at_2 = [float(x.subs(W, 2)) for x in (other, row.in_w)]
    wrong = [_value(row.f, p) / _value(right.f, p) - 1 for p in bandits()]
    yield from each_form(
        worst(abs(x) for x in wrong),
        table_5_row("Neyman", right, NAMED["Neyman"]),
        at_2_0=at_2[0],
        at_2_1=at_2[1],
        min_wrong=min(wrong),
        max_wrong=max(wrong),
        number_of_wrong=len(wrong),
    )


def _value(f: sympy.Expr, problem: Problem) -> float:
    """sum Q f(P/Q) of a printed generator."""
    return exact(divergence(as_function(f, T)), problem)[0]


@claim("EMA-tab5-alpha")
def alpha_generator() -> Iterator[Found]:
    """The row at several alpha; its limits 0 and 1 are the normalized forward and reverse KL."""
    errors, a = [], sympy.Symbol("a")
    for at in (sympy.Integer(-1), sympy.Rational(1, 2), sympy.Integer(3)):
        row = alpha_5(at)
        errors += [table_5_row("alpha", row, amari(2 * float(at) - 1))]
    general = alpha_5(a)
    errors.append(unequal(general.in_w, W * general.f.subs(T, 1 / W)))
    for end, value in ((0, W * sympy.log(W) - W + 1), (1, -sympy.log(W) + W - 1)):
        errors.append(unequal(sympy.limit(general.in_w, a, end), value))
    yield from each_form(worst(errors))


def _quotient(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """sg(w)/w."""
    w = (q - p).exp()
    return w.detach() / w


@claim("EMA-tab5-sgww")
def detached_ratio() -> Iterator[Found]:
    """sg(w)/w is r: value 1, gradient the score, in every sample."""
    errors = []
    for problem in bandits():
        for estimator in (_quotient, lambda p, q: score_ratio(p)):
            errors.append(apart(values(estimator, problem), 1.0))
            errors.append(apart(differentiated(estimator, problem), terms(problem).score))
    yield from each_form(worst(errors))


_ROOT = (sympy.sqrt(T) - 1) ** 2
TABLE_6 = {
    "Reverse KL": T * sympy.log(T) - T + 1,
    "Forward KL": -sympy.log(T) + T - 1,
    "Pearson": (T - 1) ** 2 / 2,
    "Neyman": (T - 1) ** 2 / T,
    "Squared Hellinger": _ROOT,
}
EXCHANGED = {"Forward KL": "Reverse KL", "Reverse KL": "Forward KL"}


def _same_up_to_scale(f: sympy.Expr, g: sympy.Expr) -> tuple[float, float]:
    """(error of "f = c g + a multiple of t - 1", the factor c): symbols, and the divergences enumerated."""
    at = {T: sympy.Integer(4)}
    scale = sympy.simplify((sympy.diff(f, T, 2) / sympy.diff(g, T, 2)).subs(at))
    one, other = (divergence(as_function(x, T)) for x in (f, scale * g))
    errors = [apart(*(mean_of(d, p) for d in (one, other))) for p in bandits()]
    return worst(errors), float(scale)


def mean_of(d: Pair, problem: Problem) -> float:
    """A divergence by its sum over the enumerated tokens."""
    t = terms(problem)
    return float(d(t.logp.sum(-1), t.ref_logp.sum(-1)))


@claim("EMA-f-normalisation")
def one_name_one_divergence() -> Iterator[Found]:
    """One name has one f in tables 5, 6, 9 and 10, up to what a divergence keeps; labels are other rows."""
    errors, factors = [], []
    for number, table in {6: TABLE_6, **{n: {k: r.f for k, r in TABLES[n].items()} for n in (9, 10)}}.items():
        for name, f in table.items():
            if name == "Total variation":
                errors.append(float(sympy.simplify(f - TABLE_5[name].f) != 0))
                continue
            means = EXCHANGED.get(name, name) if number > 6 else name
            g = TABLE_5[means].f if means != "Neyman" else (T - 1) ** 2 / T
            error, factor = _same_up_to_scale(f, g)
            errors.append(error)
            if factor != 1:
                factors.append(f"{name} {factor:g} in table {number}")
    for a in (sympy.Rational(-1, 3), sympy.Rational(1, 2), sympy.Integer(3)):
        error, factor = _same_up_to_scale(alpha_9(a).f, alpha_5((1 + a) / 2).f)
        errors += [error, abs(factor - 1)]
    yield from each_form(worst(errors), number=", ".join(factors))
