"""The definitions of this package, printed as JavaScript: a fourth reading of the same functions.

Every estimator is fed symbols, as in `kl_companion.theory.calculus`; its value v and its gradient weight h
become functions of u = log w = log(reference/policy). Each is printed in three forms: as it stands, and
divided by the exponential that it grows like at either end, for tails where exp(u) itself overflows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import mpmath
import sympy
from sympy.codegen.rewriting import expm1_opt, optimize
from sympy.printing.jscode import JavascriptCodePrinter

from kl_companion.auditing.judgment.words import divergence_words, objective_words
from kl_companion.auditing.worlds.truncations import mass_objectives
from kl_companion.divergences import DIVERGENCES, T, W
from kl_companion.estimators import ESTIMATORS, Estimator, get_estimator
from kl_companion.estimators.sampled import FORMS, kf_plus_plus
from kl_companion.plotting import color, label
from kl_companion.tabular.rows import choices_of
from kl_companion.theory.calculus import gradient_weight, value
from kl_companion.theory.top_k_split import head_entry, head_value, head_weight

U = sympy.Symbol("u", real=True)
MOST_ARMS = 5
HEADS = ("reverse_kl", "forward_kl")  # the divergences that are summed over a head on the page
_FAR = 800  # log-ratios at which growth is read off


class Growth(NamedTuple):
    """Exponents a with |function| about exp(a u), up to powers of u, as u goes to -infinity and +infinity."""

    low: float
    high: float


class _Printer(JavascriptCodePrinter):
    def _print_expm1(self, expr: sympy.Expr) -> str:
        return f"Math.expm1({self._print(expr.args[0])})"


def in_log_ratio(expr: sympy.Expr) -> sympy.Expr:
    """An expression in w as one in u = log w; ValueError for other symbols."""
    free = sympy.sympify(expr).free_symbols - {W}
    if free:
        raise ValueError(f"the expression {expr} has the symbols {free}, expected only w (W)")
    return sympy.expand(sympy.expand_log(sympy.sympify(expr).subs(W, sympy.exp(U)), force=True))


def growth(expr: sympy.Expr) -> Growth:
    """How an expression in u grows at either end, to a quarter; 0 for powers of u and for zero itself."""
    at = sympy.lambdify(U, expr, modules="mpmath")

    def exponent(sign: int) -> float:
        with mpmath.workdps(1500):  # enough that exp(1600) + 1 is not exp(1600)
            near, far = (abs(mpmath.mpf(at(mpmath.mpf(sign * x)))) for x in (_FAR, 2 * _FAR))
            if near == 0 or far == 0:
                return 0.0
            return sign * round(float(4 * mpmath.log(far / near) / _FAR)) / 4

    return Growth(exponent(-1), exponent(1))


def javascript(expr: sympy.Expr) -> str:
    """An expression in u as a JavaScript arrow function."""
    return f"(u) => {_Printer().doprint(expr)}"


@cache
def function(expr: sympy.Expr) -> str:
    """A JavaScript object for an expression in w: ``at(u)``, its growth, and both bounded forms."""
    in_u = in_log_ratio(expr)
    ends = growth(in_u)
    low, high = (
        javascript(sympy.expand(sympy.powsimp(sympy.expand(in_u * sympy.exp(-sympy.nsimplify(a) * U)))))
        for a in ends
    )
    near = javascript(optimize(in_u, [expm1_opt]))  # e^u - 1 without cancellation; far out it would overflow
    return f"{{at: {near}, growth: [{ends.low:g}, {ends.high:g}], low: {low}, high: {high}}}"


def _entry(said: str, shade: str, **parts: Any) -> str:
    head = f"label: {json.dumps(said, ensure_ascii=False)}, color: {json.dumps(shade)}"
    return (
        "{" + ", ".join([head, *(f"{key}: {text}" for key, text in parts.items() if text is not None)]) + "}"
    )


def _estimate(fn: Callable[[Any, Any], Any]) -> dict[str, str]:
    return {"value": function(value(fn)), "weight": function(gradient_weight(fn))}


def said_of(entry: Estimator) -> str:
    """A name for a menu: ``kf_plus_plus(pearson)`` is Kf++ of Pearson, ``k_lambda(0.5)`` is Kλ at 0.5."""
    name, _, argument = entry.name.removesuffix(")").partition("(")
    if entry.inputs == "vocab":
        return f"exact {divergence_words(entry.target)}"
    if not argument:
        return label(name)
    return f"{label(name)}, λ = {argument}" if name == "k_lambda" else f"Kf++ of {divergence_words(argument)}"


def sampled_estimators() -> dict[str, str]:
    """Every registered estimator that reads sampled log-probs, and the exact ones: name to JavaScript."""
    found = {}
    for entry in list(ESTIMATORS.values()):
        shade = color(entry.name.partition("(")[0])
        if entry.inputs == "sampled":
            parts = _estimate(entry.fn)
        elif entry.inputs == "vocab" and entry.name in ("exact_kl", "exact_forward_kl"):
            shade, parts = color("exact"), {"head": _head(entry.target, "bregman")}
        else:
            continue
        found[entry.name] = _entry(
            said_of(entry), shade, inputs=json.dumps(entry.inputs), target=json.dumps(entry.target), **parts
        )
    return found


def _head(divergence: str, form: Any) -> str:
    entry = head_entry(divergence, form)
    return f"{{value: {function(head_value(entry))}, weight: {function(head_weight(entry))}}}"


def top_k_estimators() -> dict[str, str]:
    """Head and tail of every form of the top-k divergences, and the truncated one: name to JavaScript."""
    found = {}
    whole = [(f"top_k_{d}", d, True) for d in HEADS] + [("truncated_kl", "reverse_kl", False)]
    for name, divergence, tail in whole:
        entry = get_estimator(f"{name}(1)")
        said = divergence_words(divergence)
        said = f"top-k {said}" if tail else f"top-k part of {said} alone"
        parts = {
            form: f"{{head: {_head(divergence, form)}, tail: {_tail(divergence, form) if tail else 'null'}}}"
            for form in FORMS
        }
        forms = "{" + ", ".join(f"{form}: {text}" for form, text in parts.items()) + "}"
        found[name] = _entry(
            said,
            color("bregman" if tail else "truncated"),
            inputs='"top_k"',
            target=json.dumps(entry.target),
            head_from=json.dumps(choices_of(entry).head_from),
            forms=forms,
        )
    return found


def _tail(divergence: str, form: Any) -> str:
    parts = _estimate(kf_plus_plus(divergence, form))
    return f"{{value: {parts['value']}, weight: {parts['weight']}}}"


def divergences() -> dict[str, str]:
    """Every registered divergence: what an entry adds per unit of policy mass, and its gradient weight."""
    return {
        name: _entry(
            divergence_words(name), color(name), value=function(d.dual.subs(T, W)), weight=function(d.phi)
        )
        for name, d in DIVERGENCES.items()
    }


def objectives() -> dict[str, str]:
    """What the page may find a gradient to be of, in the audit's words: an arm is a next token."""
    names = [f"token_{n}" for n in (*DIVERGENCES, "squared_log_ratio", "entropy")]
    names += [f"behavior_{n}" for n in ("squared_log_ratio", "log_likelihood", "reference_ratio")]
    names += [name for k in range(1, MOST_ARMS) for name in mass_objectives(k)]
    return {name: json.dumps(objective_words(name), ensure_ascii=False) for name in names}


def script() -> str:
    """``window.klFormulas``: estimators, divergences and objectives, as one JavaScript statement."""
    groups = {
        "estimators": {**sampled_estimators(), **top_k_estimators()},
        "divergences": divergences(),
        "objectives": objectives(),
    }
    text = ",\n".join(
        f"{group}: {{\n" + ",\n".join(f"{json.dumps(n)}: {body}" for n, body in entries.items()) + "\n}"
        for group, entries in groups.items()
    )
    return f"window.klFormulas = {{\n{text}\n}};\n"
