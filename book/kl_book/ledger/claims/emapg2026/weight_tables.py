"""Tables 9 and 10: the weights of named f-divergences to the optimal policy, row by row (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.divergences import (
    NAMED,
    Pair,
    arguments_exchanged,
    as_function,
    divergence,
    unequal,
)
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.printed import ALPHA, TABLE_9, TABLE_10, Printed
from kl_book.ledger.claims.ground.sums import exact, field, ref_ratio
from kl_book.ledger.claims.ground.targets import SIGN_OF_WEIGHT, target, targets
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_companion.divergences import T, W


def weight_row(row: Printed, *, target_first: bool) -> float:
    """Error of the printed weight: against f in symbols, and against the gradient of its divergence."""
    slope = sympy.diff(row.f, T)
    exact_weight = row.f.subs(T, W) - W * slope.subs(T, W) if target_first else slope.subs(T, 1 / W)
    f, weight = as_function(row.f, T), as_function(row.in_w, W)
    d = arguments_exchanged(divergence(f)) if target_first else divergence(f)
    found = [apart(field(weight(ref_ratio(p)), p), exact(d, p)[1]) for p in targets()]
    return worst([unequal(row.in_w, exact_weight), *found])


def label_error(row: Printed, named: Pair, *, target_first: bool) -> float:
    """Error of "the printed f, with its arguments in this order, is the divergence of that name"."""
    d = divergence(as_function(row.f, T))
    d = arguments_exchanged(d) if target_first else d
    factor = exact(d, targets()[0])[0] / exact(named, targets()[0])[0]
    return worst(
        apart(exact(d, p)[0], factor * exact(named, p)[0]) / (1 + exact(named, p)[0]) for p in targets()
    )


def _row(table: int, name: str) -> Evidence:
    """A row of table 9 (policy first) or 10 (target first): its weight, and that f is what the name says."""
    last = table == 10
    row = (TABLE_10 if last else TABLE_9)[name]
    # forward and reverse say which of policy and target comes first; the other names say which f it is
    named = NAMED[name] if "KL" in name or not last else arguments_exchanged(NAMED[name])
    return Evidence(
        max(weight_row(row, target_first=last), label_error(row, named, target_first=last)),
        note=SIGN_OF_WEIGHT,
    )


def _mislabeled(name: str, right: str, row_of_the_name: str, order: str) -> Evidence:
    """A row of table 9 whose weight is right and whose label is that of the other KL."""
    row = TABLE_9[name]
    weight = weight_row(row, target_first=False)
    small = target(two_policies((0.75, 0.25), (0.5, 0.5))._replace(rewards=torch.zeros(2).double()))
    found, said = (exact(d, small)[0] for d in (divergence(as_function(row.f, T)), NAMED[name]))
    apart_by = [relative(exact(NAMED[right], p)[1], exact(NAMED[name], p)[1]) for p in targets()]
    return Evidence(
        max(weight, label_error(row, NAMED[name], target_first=False)),
        max(weight, label_error(row, NAMED[right], target_first=False)),
        agrees_with=row_of_the_name,
        unit="relative difference",
        correction=f"the weight is right, and the row is the {right} of tables 1 and 5, {order}",
        counterexample=(
            f"policy (3/4, 1/4), target (1/2, 1/2): $D_f$ is {found:.4f}, the {name} of table 1 {said:.4f}"
        ),
        practice=(
            f"taken by its label the row trains the other KL: in the {len(targets())} bandits that were "
            f"tried the two gradients differ by {min(apart_by):.0%} to {max(apart_by):.0%} of their length. "
            "Taken by $f$ or by the weight it is right"
        ),
    )


@claim("EMA-tab9-tlogt")
def t_log_t_with_the_policy_first() -> Evidence:
    """f = t log t: -log w + 1, under the name of the forward KL."""
    return _mislabeled("Forward KL", "Reverse KL", "EMA-tab5-RKL", r"$\KL{\pi}{\pi^*}$")


@claim("EMA-tab9-mlogt")
def minus_log_t_with_the_policy_first() -> Evidence:
    """f = -log t: -w, under the name of the reverse KL."""
    return _mislabeled("Reverse KL", "Forward KL", "EMA-tab5-FKL", r"$\KL{\pi^*}{\pi}$")


def _check(table: int, name: str) -> Callable[[], Evidence]:
    return lambda: _row(table, name)


for _id, _name in {
    "JS": "Jensen-Shannon",
    "Hellinger": "Squared Hellinger",
    "Pearson": "Pearson",
    "Neyman": "Neyman",
    "TV": "Total variation",
}.items():
    claim(f"EMA-tab9-{_id}")(_check(9, _name))
    claim(f"EMA-tab10-{_id}")(_check(10, _name))
claim("EMA-tab10-tlogt")(_check(10, "Forward KL"))
claim("EMA-tab10-mlogt")(_check(10, "Reverse KL"))


def _alpha(table: int, ends: dict[int, sympy.Expr]) -> Evidence:
    """The alpha row at several alpha; near +-1 it tends to a KL's weight, up to a constant."""
    a, last = sympy.Symbol("a"), table == 10
    errors = [
        weight_row(ALPHA[table](sympy.nsimplify(x)), target_first=last)
        for x in ("-3", "-1/2", "0", "1/2", "3")
    ]
    weight = ALPHA[table](a).in_w
    for end, limit in ends.items():
        errors.append(unequal(sympy.limit(weight - weight.subs(W, 1), a, end), limit))
    return Evidence(
        worst(errors), note=r"at $\alpha = \pm 1$, which the row leaves out, it tends to the KLs' weights"
    )


@claim("EMA-tab9-alpha")
def alpha_with_the_policy_first() -> Evidence:
    """Table 9's alpha row."""
    return _alpha(9, {1: -sympy.log(W), -1: 1 - W})


@claim("EMA-tab10-alpha")
def alpha_with_the_target_first() -> Evidence:
    """Table 10's alpha row."""
    return _alpha(10, {1: 1 - W, -1: -sympy.log(W)})
