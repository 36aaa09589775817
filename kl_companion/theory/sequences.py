"""Trees of prefixes in symbols: the gradient of the KL of sequences, term by term.

Every prefix has its own odds: the probability of token a after a prefix is x_a / (x_0 + x_1 + ...), and the
logit of a is log x_a. A derivative by a logit is then x d/dx, and everything below is a sum of logarithms
with rational coefficients, in which equality is decided exactly.

The gradient splits into the terms E[log rho_s grad log pi_t] of all pairs of positions, where rho_s is
the ratio of policy to reference of token s alone. Pairs with s < t vanish, pairs with s = t are what
token-level losses descend, pairs with s > t are what they miss (tang2025pitfalls, section 4.2 and
appendix D).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import sympy

Prefix = tuple[int, ...]
Field = dict[sympy.Symbol, sympy.Expr]
_MOST = 64  # sequences; symbols grow with the number of prefixes


class SymbolicTree(NamedTuple):
    """All sequences of a tree, and the odds of every next token.

    Attributes:
        sequences: Every sequence that can be sampled.
        odds: Policy: for each prefix, one positive symbol per token; logits are their logarithms.
        ref_odds: Reference, alike.
    """

    sequences: tuple[Prefix, ...]
    odds: dict[Prefix, tuple[sympy.Symbol, ...]]
    ref_odds: dict[Prefix, tuple[sympy.Symbol, ...]]

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(y) for y in self.sequences)


def symbolic_tree(vocab: int = 2, length: int = 2, *, eos: bool = False) -> SymbolicTree:
    """All sequences of up to ``length`` tokens; with ``eos``, token 0 ends a sequence early.

    Raises:
        ValueError: fewer than two tokens, a length below 1, or more than 64 sequences.
    """
    if vocab < 2 or length < 1:
        raise ValueError(
            f"vocab={vocab}, length={length}: expected vocab of at least 2, length of at least 1"
        )
    if vocab**length > _MOST:
        raise ValueError(f"{vocab}^{length} sequences, expected at most {_MOST} in symbols")
    every = itertools.product(range(vocab), repeat=length)
    ends = {y[: y.index(0) + 1] if eos and 0 in y else y for y in every}
    prefixes = sorted({y[:t] for y in ends for t in range(len(y))}, key=lambda p: (len(p), p))

    def symbols(letter: str) -> dict[Prefix, tuple[sympy.Symbol, ...]]:
        return {
            p: tuple(
                sympy.Symbol(f"{letter}_{''.join(map(str, (*p, a)))}", positive=True) for a in range(vocab)
            )
            for p in prefixes
        }

    return SymbolicTree(tuple(sorted(ends)), symbols("x"), symbols("q"))


def _chance(odds: dict[Prefix, tuple[sympy.Symbol, ...]], y: Prefix, t: int) -> sympy.Expr:
    row = odds[y[:t]]
    return row[y[t]] / sum(row)


def probability(tree: SymbolicTree, y: Prefix) -> sympy.Expr:
    """Probability of a sequence, or of beginning with a prefix, under the policy."""
    return sympy.Mul(*(_chance(tree.odds, y, t) for t in range(len(y))))


def log_ratio(tree: SymbolicTree, y: Prefix, t: int) -> sympy.Expr:
    """log of policy over reference of token ``t`` (from 0) of a sequence; 0 after its end."""
    if t >= len(y):
        return sympy.S.Zero
    return sympy.log(_chance(tree.odds, y, t)) - sympy.log(_chance(tree.ref_odds, y, t))


def in_logs(expr: sympy.Expr) -> sympy.Expr:
    """A sum of logarithms with rational coefficients, each in lowest terms.

    The arguments of the logarithms are single symbols and sums over one row: no product of powers of
    them is constant, so the expression is zero only if it comes out as 0.

    Raises:
        ValueError: logarithms are multiplied with each other.
    """
    opened = sympy.expand_log(expr, force=True)
    logs = sorted(opened.atoms(sympy.log), key=str)
    stand_in = {x: sympy.Dummy() for x in logs}
    linear = opened.xreplace(stand_in)
    slopes = {x: sympy.diff(linear, d) for x, d in stand_in.items()}
    if any(slope.free_symbols & set(stand_in.values()) for slope in slopes.values()):
        raise ValueError(f"got {expr}, expected a sum of logarithms with rational coefficients")
    parts = [sympy.factor(slope) * x for x, slope in slopes.items()]
    rest = sympy.factor(linear.xreplace(dict.fromkeys(stand_in.values(), sympy.S.Zero)))
    return sympy.Add(rest, *parts)


def sequence_kl(tree: SymbolicTree) -> sympy.Expr:
    """E[sum over the visited prefixes of the KL of the next token].

    Source: tang2025pitfalls, section 4 (the definition of KL_seq).
    """
    total = sympy.S.Zero
    for prefix, row in tree.odds.items():
        # the last token of y = prefix + (a,) has position len(prefix)
        each = (row[a] / sum(row) * log_ratio(tree, (*prefix, a), len(prefix)) for a in range(len(row)))
        total += probability(tree, prefix) * sum(each)
    return total


def gradient(tree: SymbolicTree, expr: sympy.Expr) -> Field:
    """Derivative by every logit of the policy; logits are named by their odds."""
    return {x: in_logs(x * sympy.diff(expr, x)) for row in tree.odds.values() for x in row}


def credit_term(tree: SymbolicTree, s: int, t: int) -> Field:
    """E[log rho_s grad log pi_t], for every logit: what charging token ``t`` with the cost of ``s`` gives.

    Args:
        tree: The tree.
        s: Position of the cost, from 0.
        t: Position of the score, from 0.

    Raises:
        ValueError: a position outside the tree.

    Source: tang2025pitfalls, section 4.2 and appendix D, steps (b) to (d).
    """
    if not (0 <= s < tree.length and 0 <= t < tree.length):
        raise ValueError(f"s={s}, t={t}: expected positions from 0 to {tree.length - 1}")
    field: Field = {x: sympy.S.Zero for row in tree.odds.values() for x in row}
    for y in tree.sequences:
        if t >= len(y):
            continue
        weight = probability(tree, y) * log_ratio(tree, y, s)
        row = tree.odds[y[:t]]
        for a, x in enumerate(row):
            field[x] += weight * (int(a == y[t]) - x / sum(row))
    return {x: in_logs(e) for x, e in field.items()}


def add(*fields: Field) -> Field:
    """The sum of fields over the same logits.

    Raises:
        ValueError: no field, or fields over different logits.
    """
    if not fields or any(set(f) != set(fields[0]) for f in fields):
        raise ValueError(f"got {len(fields)} fields, expected at least one, all over the same logits")
    return {x: in_logs(sum((f[x] for f in fields), sympy.S.Zero)) for x in fields[0]}


def partial_gradients(tree: SymbolicTree) -> tuple[Field, Field]:
    """Part i (a token pays for itself) and part ii (it pays for what comes later) of the gradient.

    Source: tang2025pitfalls, appendix D, step (d).
    """
    n = tree.length
    own = add(*(credit_term(tree, t, t) for t in range(n)))
    if n == 1:
        return own, dict.fromkeys(own, sympy.S.Zero)
    return own, add(*(credit_term(tree, s, t) for t in range(n) for s in range(t + 1, n)))


def curl(field: Field) -> dict[tuple[sympy.Symbol, sympy.Symbol], sympy.Expr]:
    """d F_b / d logit_a - d F_a / d logit_b for every pair a, b where it is not zero.

    Nothing is left exactly if the field is the gradient of a function.
    """
    found = {}
    for a, b in itertools.combinations(field, 2):
        gap = in_logs(a * sympy.diff(field[b], a) - b * sympy.diff(field[a], b))
        if gap != 0:
            found[a, b] = gap
    return found
