"""`kl-companion derive`: what an estimator optimizes, in symbols."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kl_companion.cli.printing import row

if TYPE_CHECKING:
    import sympy

HELP = "value, gradient weight and implied f of an estimator, in symbols"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("estimator")
    parser.add_argument("--placement", choices=("loss", "reward", "full"), default="loss")
    parser.add_argument("--latex", action="store_true", help="print LaTeX")


def run(args: argparse.Namespace) -> int:
    """Print value, gradient weight, implied f and its second derivative."""
    import sympy

    from kl_companion.divergences import T
    from kl_companion.estimators import get_estimator
    from kl_companion.theory import calculus

    show: Callable[[sympy.Expr], str] = sympy.latex if args.latex else str
    entry = get_estimator(args.estimator)
    if entry.inputs == "top_k" and args.placement == "loss":
        return _top_k(entry, show)
    weight = calculus.gradient_weight(args.estimator, args.placement)
    f = calculus.implied_f(weight)
    row("value(w)", show(calculus.value(args.estimator)))
    row(f"weight h(w) in the {args.placement}", show(weight))
    row("implied f(t), t = 1/w", show(f))
    row("f''(t)", show(sympy.factor(sympy.simplify(sympy.diff(f, T, 2)))))
    match = calculus.match_divergence(f)
    if match is None:
        said = "no sum of two registered divergences"
    else:
        said = " + ".join(f"{c} x {n}" for n, c in match.items()).replace("+ -", "- ") or "zero"
    row("which is", said)
    return 0


def _top_k(entry: Any, show: Callable[[sympy.Expr], str]) -> int:
    """Print what head and tail of a top-k estimator are, and what they leave behind together."""
    from kl_companion.theory import calculus, top_k_split

    form, divergence = entry.fn.form, entry.fn.divergence
    head = top_k_split.head_entry(divergence, form)
    row("head, per P", show(top_k_split.head_value(head)))
    row("its weight h(w)", show(top_k_split.head_weight(head)))
    if not entry.fn.tail:
        row("tail", "none: what stands outside the head is missing")
        return 0
    row("tail, value(w)", show(calculus.value(entry.fn.sampled)))
    row("its weight h(w)", show(calculus.gradient_weight(entry.fn.sampled)))
    left = top_k_split.split(head, entry.fn.sampled, divergence)
    row("left in the value", f"{left.value} x (P(S) - Q(S))")
    row("left in the gradient", f"{left.gradient} x grad P(S)")
    return 0
