"""Operators of mutants beside cosmic-ray's: the slips of someone who writes down an estimator.

The policy taken for the reference, the order of a difference turned round, a ``.detach()`` or a logarithm
forgotten. Each class has the two methods that cosmic-ray asks of an operator: where a node can be changed,
and the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parso.python.tree import Name

PAIRS = (
    ("logp", "ref_logp"),
    ("logp_all", "ref_logp_all"),
    ("log_p", "log_q"),
    ("no_p", "no_q"),
    ("low", "high"),
    ("only_p", "only_q"),
    ("at_zero", "at_infinity"),
    ("reverse_kl", "forward_kl"),
    ("policy", "reference"),
)
SWAPPED = {
    **dict(PAIRS),
    **{other: one for one, other in PAIRS},
    **dict.fromkeys(("bregman", "published"), "generic"),
    "expm1": "exp",
}
UNWRAPPED = frozenset(
    ("stop_gradient", "exp", "expm1", "log", "sqrt", "score_ratio", "detach", "Abs", "sign")
)

Span = tuple[tuple[int, int], tuple[int, int]]


def _text(node: Any, code: str) -> Name:
    """A node that prints ``code`` where another node stood."""
    return Name(code, node.start_pos, node.get_first_leaf().prefix)


class SwapNames:
    """One name of a pair for the other: a variable, an attribute, or a whole string."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """The node itself, if it is such a name where it is read."""
        if node.type == "string" and node.value[1:-1] in SWAPPED:
            yield node.start_pos, node.end_pos
        elif node.type == "name" and node.value in SWAPPED and not node.is_definition():
            up = node.parent
            keyword = up.type == "argument" and up.children[1].value == "=" and up.children[0] is node
            if not keyword and up.type not in ("import_from", "dotted_name"):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The other name."""
        quote = node.value[0] if node.type == "string" else ""
        return _text(node, quote + SWAPPED[node.value.strip(quote or None)] + quote)


class _Reverse:
    """The operands of one operator exchanged: a - b becomes b - a."""

    sign = ""

    def _at(self, node: Any) -> list[int]:
        children = node.children if node.type in ("arith_expr", "term") else ()
        return [i for i, x in enumerate(children) if x.type == "operator" and x.value == self.sign]

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """One for each such operator of a sum or a product; all to the left of it are one operand."""
        for i in self._at(node):
            yield node.children[i].start_pos, node.children[i].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The sum or product with the two operands in the other order."""
        i = self._at(node)[index]
        left = "".join(x.get_code() for x in node.children[:i]).strip()
        right = node.children[i + 1].get_code().strip()
        rest = "".join(x.get_code() for x in node.children[i + 2 :])
        return _text(node, f"({right}) {self.sign} ({left}){rest}")


class ReverseDifference(_Reverse):
    """``a - b`` becomes ``b - a``, unless its square is all that is read of it."""

    sign = "-"

    def _at(self, node: Any) -> list[int]:
        bracket = node.parent
        power = bracket.parent if bracket is not None and bracket.type == "atom" else None
        if power is not None and power.type == "power" and power.get_code().rstrip().endswith("** 2"):
            return []
        return super()._at(node)


class ReverseQuotient(_Reverse):
    """``a / b`` becomes ``b / a``."""

    sign = "/"


class Unwrap:
    """A call is dropped and its argument stays: ``x`` for ``exp(x)``, ``x.exp()`` and ``torch.exp(x)``."""

    def _at(self, node: Any) -> list[int]:
        """Of ``a.b(c)``: where the brackets of such calls stand among the pieces."""
        if node.type not in ("atom_expr", "power"):
            return []
        return [
            i
            for i, piece in enumerate(node.children)
            if i
            and piece.type == "trailer"
            and piece.children[0].value == "("
            and _last_name(node.children[i - 1]) in UNWRAPPED
            and (i > 1 or len(piece.children) > 2)
        ]

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """One for each such call of a chain."""
        for i in self._at(node):
            yield node.children[i].start_pos, node.children[i].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The chain without that call."""
        i = self._at(node)[index]
        arguments = node.children[i].children[1:-1]
        if arguments:  # of several, the first
            given = arguments[0].children[0] if arguments[0].type == "arglist" else arguments[0]
            inner = f"({given.get_code().strip()})"
        else:
            inner = "".join(x.get_code() for x in node.children[: i - 1]).strip()
        return _text(node, inner + "".join(x.get_code() for x in node.children[i + 1 :]))


def _last_name(node: Any) -> str:
    """The name of ``f`` and of ``.f``, else nothing."""
    leaf = node.get_last_leaf()
    dotted = node.type == "trailer" and node.children[0].value == "."
    return str(leaf.value) if leaf.type == "name" and (node is leaf or dotted) else ""


OPERATORS = {made.__name__: made for made in (SwapNames, ReverseDifference, ReverseQuotient, Unwrap)}
