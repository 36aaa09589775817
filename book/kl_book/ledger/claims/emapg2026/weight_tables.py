"""Tables 9 and 10: the weights of named f-divergences to the optimal policy, row by row (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim_rows
from kl_book.ledger.claims.comparisons import Form, Found, Shortfall, numbers, printed, same
from kl_book.ledger.claims.ground import errors, worlds
from kl_book.ledger.claims.ground.divergences import (
    NAMED,
    Pair,
    arguments_exchanged,
    as_function,
    divergence,
    unequal,
)
from kl_book.ledger.claims.ground.printed_forms import TABLES, Printed, alpha_row
from kl_book.ledger.claims.ground.sums import exact, field, ref_ratio
from kl_book.ledger.claims.ground.targets import target, targets
from kl_companion.divergences import T, W

NAMES = {
    "JS": "Jensen-Shannon",
    "Hellinger": "Squared Hellinger",
    "Pearson": "Pearson",
    "Neyman": "Neyman",
    "TV": "Total variation",
}


def weight(row: Printed, *, target_first: bool, form: Form = "printed") -> Iterator[Found]:
    """The printed weight is that of f in symbols, and the gradient of its divergence."""
    slope = sympy.diff(row.f, T)
    right = row.f.subs(T, W) - W * slope.subs(T, W) if target_first else slope.subs(T, 1 / W)
    f, in_w = as_function(row.f, T), as_function(row.in_w, W)
    d = arguments_exchanged(divergence(f)) if target_first else divergence(f)
    yield Shortfall(form, unequal(row.in_w, right))
    for p in targets():
        yield same(field(in_w(ref_ratio(p)), p), exact(d, p)[1], form)


def label(row: Printed, named: Pair, *, target_first: bool, form: Form = "printed") -> Iterator[Found]:
    """The printed f, with its arguments in this order, is the divergence of that name up to a factor."""
    d = divergence(as_function(row.f, T))
    d = arguments_exchanged(d) if target_first else d
    factor = exact(d, targets()[0])[0] / exact(named, targets()[0])[0]
    for p in targets():
        unit = 1 + exact(named, p)[0]
        yield same(exact(d, p)[0] / unit, factor * exact(named, p)[0] / unit, form)


def row_of_table(row: tuple[int, str]) -> Iterator[Found]:
    """A row of table 9 (policy first) or 10 (target first): its weight, and that f is what the name says."""
    table, name = row
    last = table == 10
    # forward and reverse say which of policy and target comes first; the other names say which f it is
    named = NAMED[name] if "KL" in name or not last else arguments_exchanged(NAMED[name])
    yield from weight(TABLES[table][name], target_first=last)
    yield from label(TABLES[table][name], named, target_first=last)


claim_rows(
    row_of_table,
    {f"EMA-tab{table}-{id}": [(table, name)] for table in (9, 10) for id, name in NAMES.items()}
    | {"EMA-tab10-tlogt": [(10, "Forward KL")], "EMA-tab10-mlogt": [(10, "Reverse KL")]},
)


def mislabeled(names: tuple[str, str]) -> Iterator[Found]:
    """A row of table 9 whose weight is right and whose label is that of the other KL."""
    name, right = names
    row = TABLES[9][name]
    yield from weight(row, target_first=False)
    yield from label(row, NAMED[name], target_first=False)
    yield from weight(row, target_first=False, form="corrected")
    yield from label(row, NAMED[right], target_first=False, form="corrected")
    small = target(worlds.two_policies((0.75, 0.25), (0.5, 0.5))._replace(rewards=torch.zeros(2).double()))
    apart = [errors.relative(exact(NAMED[right], p)[1], exact(NAMED[name], p)[1]) for p in targets()]
    yield numbers(
        of_f=exact(divergence(as_function(row.f, T)), small)[0],
        of_the_name=exact(NAMED[name], small)[0],
        bandits=len(apart),
        least=min(apart),
        most=max(apart),
    )


claim_rows(
    mislabeled,
    {
        "EMA-tab9-tlogt": [("Forward KL", "Reverse KL")],
        "EMA-tab9-mlogt": [("Reverse KL", "Forward KL")],
    },
)


FORWARD, REVERSE = 1 - W, -sympy.log(W)  # weights of the two KLs, 0 at w = 1


def alpha(row: tuple[int, sympy.Expr, sympy.Expr]) -> Iterator[Found]:
    """The alpha row at several alpha; near -1 and 1 it tends to a KL's weight, up to a constant."""
    table, at_minus_one, at_one = row
    for x in ("-3", "-1/2", "0", "1/2", "3"):
        yield from weight(alpha_row(table, sympy.nsimplify(x)), target_first=table == 10)
    a = sympy.Symbol("a")
    general = alpha_row(table, a).in_w
    for end, limit in ((-1, at_minus_one), (1, at_one)):
        yield printed(unequal(sympy.limit(general - general.subs(W, 1), a, end), limit))


claim_rows(alpha, {"EMA-tab9-alpha": [(9, FORWARD, REVERSE)], "EMA-tab10-alpha": [(10, REVERSE, FORWARD)]})
