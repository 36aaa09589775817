"""Mutants of a piece of source: the operators of cosmic-ray and our own; what is left out, and why.

cosmic-ray starts a process for every mutant and writes it over the source. Here nothing on disk changes, so
of cosmic-ray only the operators and the walk over the syntax tree are taken. The slips of someone who writes
down an estimator are in `tests.support.mutation_operators`.

Left out, because it says nothing about the tests:

* annotations, ``if TYPE_CHECKING:`` and unions of types: names for readers and checkers of types;
* what stands inside a string or a ``raise``: the text of a message;
* a cache and how much it keeps: without it the same numbers come, later;
* ``strict=`` of ``zip``: an assertion, which only a mistake in the package itself could reach;
* operators that fit no tensor, symbol or number at hand (shifts, ``%`` for ``+``): Python itself raises at
  the first use, so that they would be noticed without any test of a value, and the score would flatter;
* operators that make again what another makes: ``not`` in front of a single comparison, which is replaced by
  its opposite; a sign turned into ``+``, for it is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import mutation_operators

AUDIT = Path(__file__).resolve().parents[2] / ".audit"

ARITHMETIC = (
    "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul BitAnd_BitOr BitOr_BitAnd BitXor_BitOr"
)
# the opposite of each comparison, and the one that differs where both sides are equal
COMPARED = "Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is Lt_GtE Lt_LtE LtE_Gt LtE_Lt Gt_LtE Gt_GtE GtE_Lt GtE_Gt"
OPERATORS = (
    *(f"ReplaceBinaryOperator_{x}" for x in ARITHMETIC.split()),
    *(f"ReplaceComparisonOperator_{x}" for x in COMPARED.split()),
    *(f"ReplaceUnaryOperator_Delete_{x}" for x in ("USub", "Invert", "Not")),
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)
CACHES = {"cache", "lru_cache"}
# a `*` elsewhere makes parameters keyword-only or unpacks
BINARY = {"arith_expr", "term", "power", "expr", "and_expr", "xor_expr"}
REPLACED = {"==", "!=", "<", "<=", ">", ">=", "is", "is not"}
TYPES = {"str", "int", "float", "bool", "None", "list", "tuple", "dict", "set", "slice"}


class Change(NamedTuple):
    """One change of a source: the operator, the how-manieth of all that it could make, and where.

    Attributes:
        operator: Its name.
        occurrence: Among all its changes in the source, those that are left out included.
        line: Number of the line where the changed piece begins.
        column: Where in the line.
        was: The code of the node that it changes.
    """

    operator: str
    occurrence: int
    line: int
    column: int
    was: str


@cache
def tools() -> tuple[Any, dict[str, Any]]:
    """cosmic-ray's module of syntax trees, and its operators by name."""
    if not (AUDIT / "cosmic_ray").is_dir():
        raise FileNotFoundError(
            f"{AUDIT} has no cosmic_ray: `make test` fetches it with requirements-audit.lock"
        )
    sys.path.append(str(AUDIT))  # at the end: what .venv has comes from there
    try:
        import cosmic_ray.ast as trees
        from cosmic_ray.operators.provider import OperatorProvider
    finally:
        sys.path.remove(str(AUDIT))
    provider = OperatorProvider()
    ours = {name: operator() for name, operator in mutation_operators.OPERATORS.items()}
    return trees, {name: provider[name]() for name in OPERATORS} | ours


def _above(node: Any) -> Iterator[Any]:
    while node is not None:
        yield node
        node = node.parent


def _is_annotation(node: Any) -> bool:
    """Whether a node belongs to an annotation of a name, a parameter or a result."""
    for low in _above(node):
        up = low.parent
        if up is None:
            return False
        if up.type == "annassign" and low is up.children[1]:
            return True
        if up.type == "tfpdef" and low is up.children[2]:  # of a parameter
            return True
        if up.type == "funcdef" and low is up.annotation:
            return True
    return False


def _is_union(node: Any) -> bool:
    """Whether ``|`` stands between types."""
    beside = (node.get_previous_leaf().value, node.get_next_leaf().value)
    return node.value == "|" and any(x in TYPES or x[:1].isupper() for x in beside)


def _left_out(node: Any, operator: str) -> bool:
    """Whether a change of this node is one of those that say nothing; see the top of the file."""
    for x in _above(node):
        if x.type in ("raise_stmt", "fstring"):
            return True
        if x.type == "if_stmt" and x.children[1].get_code().strip() == "TYPE_CHECKING":
            return True
        if x.type == "argument" and x.children[0].get_code().strip() == "strict":
            return True
        if x.type == "decorator" and x.children[1].get_code().partition("(")[0] in CACHES:
            return True
    if operator.startswith("ReplaceBinaryOperator"):
        return node.parent.type not in BINARY or _is_union(node) or _is_annotation(node)
    if operator == "AddNot":
        condition = node.children[2 if node.type == "test" else 1]
        single = condition.type == "comparison" and len(condition.children) == 3
        replaced = single and condition.children[1].get_code().strip() in REPLACED
        return replaced or condition.type == "not_test"
    return _is_annotation(node)


def changes(source: str) -> list[Change]:
    """Every change that is made of a source, operator by operator."""
    trees, operators = tools()
    nodes = list(trees.ast_nodes(trees.get_ast(source)))
    found = []
    for name, operator in operators.items():
        counted = ((node, *start) for node in nodes for start, _ in operator.mutation_positions(node))
        for i, (node, line, column) in enumerate(counted):
            if not _left_out(node, name):
                found.append(Change(name, i, line, column, node.get_code().strip()))
    return found


def changed(source: str, change: Change) -> str:
    """The source with one of its `changes`; it may not compile, or mean the same."""
    trees, operators = tools()
    operator = operators[change.operator]

    class Once(trees.Visitor):  # type: ignore[name-defined]
        left = change.occurrence

        def visit(self, node: Any) -> Any:
            here, self.left = self.left, self.left - len(list(operator.mutation_positions(node)))
            if not self.left < 0 <= here:
                return node
            space, node = getattr(node, "prefix", ""), operator.mutate(node, here)
            if change.operator == "NumberReplacer":  # keep the space in front, and add no other
                node.prefix, node.value = space, node.value.strip()
            return node

    return str(Once().walk(trees.get_ast(source)).get_code())
