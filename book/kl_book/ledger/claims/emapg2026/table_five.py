"""Table 5, row by row, and the generators that the source's tables give one name (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import Form, Found, Shortfall, printed, same
from kl_book.ledger.claims.ground.divergences import (
    NAMED,
    Pair,
    amari,
    as_function,
    bias_against,
    divergence,
    unequal,
)
from kl_book.ledger.claims.ground.estimates import detached_forward, score_ratio
from kl_book.ledger.claims.ground.printed_forms import TABLES, Printed, alpha_row
from kl_book.ledger.claims.ground.sums import exact, terms
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits
from kl_companion.divergences import T, W
from kl_companion.tabular import Problem

NEYMAN = (T - 1) ** 2 / T  # as in tables 6, 9 and 10


def times_ratio(value: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """r times a function of w."""
    return lambda p, q: score_ratio(p) * value((q - p).exp())


def row_of_table_5(name: str, row: Printed, meaning: Pair, form: Form = "printed") -> Iterator[Found]:
    """f generates what the row's name says, and the expression beside it is sg(w) f(1/w)."""
    f, value = as_function(row.f, T), as_function(row.in_w, W)
    yield Shortfall(form, unequal(row.in_w, W * row.f.subs(T, 1 / W)))
    # the first row is printed with its own stop-gradient, the others as r times their value
    estimator = detached_forward if name == "Forward KL" else times_ratio(value)
    for problem in bandits():
        yield same(exact(divergence(f), problem)[0], exact(meaning, problem)[0], form)
        yield Shortfall(form, bias_against(estimator, divergence(f), problem))


def row_as_printed(name: str) -> Iterator[Found]:
    """A row that is right as it is printed."""
    yield from row_of_table_5(name, TABLES[5][name], NAMED[name])


ROWS = {
    "FKL": "Forward KL",
    "RKL": "Reverse KL",
    "Pearson": "Pearson",
    "Hellinger": "Squared Hellinger",
    "JS": "Jensen-Shannon",
    "TV": "Total variation",
}
claim_rows(row_as_printed, {f"EMA-tab5-{id}": [name] for id, name in ROWS.items()})


def excess_of_printed(problem: Problem) -> float:
    """By what share the divergence of the f that is printed for Neyman is above Neyman's."""
    wrong, right = (divergence(as_function(f, T)) for f in (TABLES[5]["Neyman"].f, NEYMAN))
    return exact(wrong, problem)[0] / exact(right, problem)[0] - 1


@claim("EMA-tab5-Neyman")
def neyman_generator() -> Iterator[Found]:
    """Pearson's f beside Neyman's estimator; Neyman's f is (t - 1)^2 / t, as in tables 6 and 9."""
    yield from row_of_table_5("Neyman", TABLES[5]["Neyman"]._replace(f=NEYMAN), NAMED["Neyman"], "corrected")
    for problem in bandits():
        yield printed(abs(excess_of_printed(problem)))


@words("EMA-tab5-Neyman")
def neyman_by_both() -> dict[str, Any]:
    """The value that f gives at w = 2 and that of the estimator; the excess over all bandits."""
    row, excess = TABLES[5]["Neyman"], [excess_of_printed(p) for p in bandits()]
    by_f = W * row.f.subs(T, 1 / W)
    return {
        "by_f": float(by_f.subs(W, 2)),
        "estimator": float(row.in_w.subs(W, 2)),
        "least": min(excess),
        "most": max(excess),
        "bandits": len(excess),
    }


@claim("EMA-tab5-alpha")
def alpha_generator() -> Iterator[Found]:
    """The row at several alpha; its limits 0 and 1 are the normalized forward and reverse KL."""
    for at in (sympy.Integer(-1), sympy.Rational(1, 2), sympy.Integer(3)):
        yield from row_of_table_5("alpha", alpha_row(5, at), amari(2 * float(at) - 1))
    a = sympy.Symbol("a")
    general = alpha_row(5, a)
    yield printed(unequal(general.in_w, W * general.f.subs(T, 1 / W)))
    for end, value in ((0, W * sympy.log(W) - W + 1), (1, -sympy.log(W) + W - 1)):
        yield printed(unequal(sympy.limit(general.in_w, a, end), value))


def quotient(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """sg(w)/w."""
    w = (q - p).exp()
    return w.detach() / w


@claim("EMA-tab5-sgww", over=each(bandits))
def detached_ratio(w: Enumeration) -> Iterator[Found]:
    """sg(w)/w is r: value 1, gradient the score, in every sample."""
    for estimator in (quotient, lambda p, q: score_ratio(p)):
        yield same(w.value(estimator), 1.0)
        yield same(w.slope(estimator), w.s)


EXCHANGED = {"Forward KL": "Reverse KL", "Reverse KL": "Forward KL"}


def factor(f: sympy.Expr, g: sympy.Expr) -> sympy.Expr:
    """c of f = c g + a multiple of t - 1, from the second derivatives at one point."""
    return sympy.simplify((sympy.diff(f, T, 2) / sympy.diff(g, T, 2)).subs({T: sympy.Integer(4)}))


def up_to_scale(f: sympy.Expr, g: sympy.Expr) -> Iterator[Found]:
    """f = c g + a multiple of t - 1: their divergences, summed over the enumerated tokens."""
    one, other = (divergence(as_function(x, T)) for x in (f, factor(f, g) * g))
    for problem in bandits():
        t = terms(problem)
        p, q = t.logp.sum(-1), t.ref_logp.sum(-1)
        yield same(one(p, q), other(p, q))


def pairs() -> Iterator[tuple[int, str, sympy.Expr, sympy.Expr]]:
    """(table, name, its f there, that of table 5); tables 9 and 10 exchange the labels of the two KLs."""
    generators = {6: {name: row.f for name, row in TABLES[6].items()}}
    for number in (9, 10):
        generators[number] = {EXCHANGED.get(name, name): row.f for name, row in TABLES[number].items()}
    for number, table in generators.items():
        for name, f in table.items():
            yield number, name, f, NEYMAN if name == "Neyman" else TABLES[5][name].f


@claim("EMA-f-normalisation")
def one_name_one_divergence() -> Iterator[Found]:
    """One name has one f in tables 5, 6, 9 and 10, up to what a divergence keeps; labels are other rows."""
    for _, name, f, g in pairs():
        if name == "Total variation":
            yield printed(float(sympy.simplify(f - g) != 0))
        else:
            yield from up_to_scale(f, g)
    for a in (sympy.Rational(-1, 3), sympy.Rational(1, 2), sympy.Integer(3)):
        yield from up_to_scale(alpha_row(9, a).f, alpha_row(5, (1 + a) / 2).f)
        yield same(float(factor(alpha_row(9, a).f, alpha_row(5, (1 + a) / 2).f)), 1.0)


@words("EMA-f-normalisation")
def factors() -> dict[str, Any]:
    """Those that are not 1; total variation has no second derivative."""
    of_all = sorted((n, name, float(factor(f, g))) for n, name, f, g in pairs() if name != "Total variation")
    return {"factors": [f"{name} {c:g} in table {number}" for number, name, c in of_all if c != 1]}
