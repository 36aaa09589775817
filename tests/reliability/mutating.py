"""Mutants of the package's source, made by the operators of cosmic-ray; what is left out, and why.

cosmic-ray starts a process for every mutant and writes it over the source. Here nothing on disk changes, so
of cosmic-ray only the operators and the walk over the syntax tree are taken.

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

import ast
import difflib
import hashlib
import sys
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
AUDIT = ROOT / ".audit"

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
PER_LINE = 2  # mutants of one line in a draw
# a `*` elsewhere makes parameters keyword-only or unpacks
BINARY = {"arith_expr", "term", "power", "expr", "and_expr", "xor_expr"}
REPLACED = {"==", "!=", "<", "<=", ">", ">=", "is", "is not"}
TYPES = {"str", "int", "float", "bool", "None", "list", "tuple", "dict", "set", "slice"}


Key = tuple[str, str, str, str]


class Mutant(NamedTuple):
    """A module with one change.

    Attributes:
        module: Dotted name.
        function: Where the change is: ``Class.method``, or empty for the module itself.
        line: Number of the first changed line.
        was: The changed lines before, without indentation.
        becomes: The changed lines after.
        source: The whole module after.
    """

    module: str
    function: str
    line: int
    was: str
    becomes: str
    source: str

    @property
    def key(self) -> Key:
        """What stays when lines are added above."""
        return self.module, self.function, self.was, self.becomes

    def __str__(self) -> str:
        place = f"{path_of(self.module).relative_to(ROOT)}:{self.line}"
        return f"{place} ({self.function or 'module'})\n    - {self.was}\n    + {self.becomes}"


class Place(NamedTuple):
    """One change that an operator can make: the how-manieth of its changes in the module, and its line."""

    module: str
    operator: str
    occurrence: int
    line: int


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
    return trees, {name: provider[name]() for name in OPERATORS}


def path_of(module: str) -> Path:
    """The file of a module."""
    return ROOT / f"{module.replace('.', '/')}.py"


@cache
def source_of(module: str) -> str:
    """The source of a module as it stands."""
    return path_of(module).read_text(encoding="utf-8")


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


@cache
def places(module: str) -> tuple[Place, ...]:
    """Every change that is made of a module."""
    trees, operators = tools()
    nodes = list(trees.ast_nodes(trees.get_ast(source_of(module))))
    found = []
    for name, operator in operators.items():
        counted = ((node, start[0]) for node in nodes for start, _ in operator.mutation_positions(node))
        for i, (node, line) in enumerate(counted):
            if not _left_out(node, name):
                found.append(Place(module, name, i, line))
    return tuple(found)


def _changed(place: Place) -> str:
    """The source with that change."""
    trees, operators = tools()
    operator = operators[place.operator]

    class Once(trees.Visitor):  # type: ignore[name-defined]
        left = place.occurrence

        def visit(self, node: Any) -> Any:
            for index, _ in enumerate(operator.mutation_positions(node)):
                if self.left == 0:
                    space, node = getattr(node, "prefix", ""), operator.mutate(node, index)
                    if place.operator == "NumberReplacer":  # keep the space in front, and add no other
                        node.prefix, node.value = space, node.value.strip()
                self.left -= 1
            return node

    return str(Once().walk(trees.get_ast(source_of(place.module))).get_code())


def _function_at(source: str, line: int) -> str:
    """The qualified name of the innermost named function or class around a line."""
    names: list[str] = []

    def look(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                if first <= line <= (child.end_lineno or first):
                    names.append(child.name)
                    look(child)
            else:
                look(child)

    look(ast.parse(source))
    return ".".join(names)


def mutant(place: Place) -> Mutant | None:
    """The mutant; None where the change does not compile, or changes nothing."""
    before, after = source_of(place.module), _changed(place)
    try:
        if ast.dump(ast.parse(after)) == ast.dump(ast.parse(before)):
            return None
    except SyntaxError:
        return None
    old, new = _lines(before), _lines(after)
    same = difflib.SequenceMatcher(None, list(old.values()), list(new.values()), autojunk=False)
    blocks = [x for x in same.get_opcodes() if x[0] != "equal"]
    line = list(old)[blocks[0][1]]
    was = "\n".join(list(old.values())[blocks[0][1] : blocks[-1][2]])
    becomes = "\n".join(list(new.values())[blocks[0][3] : blocks[-1][4]])
    return Mutant(place.module, _function_at(before, line), line, was, becomes, after)


def _lines(source: str) -> dict[int, str]:
    """The lines that are not empty, without indentation, by their numbers."""
    return {i: line.strip() for i, line in enumerate(source.splitlines(), 1) if line.strip()}


def drawn(
    modules: tuple[str, ...], number: int | None, seed: int, without: Container[Key] = ()
) -> list[Mutant]:
    """Mutants of some modules, all different, by module; ``number`` of them at random, or all with None.

    The draw orders places by a digest of what they are, so that a changed line changes the draw of its own
    mutants and of no others. It takes at most two of one line: a list of constants has as many mutants as a
    page of formulas.
    """
    seen: dict[str, int] = {}
    order: list[tuple[bytes, Place]] = []
    for place in (place for module in modules for place in places(module)):
        what = (
            f"{seed} {place.module} {place.operator} {source_of(place.module).splitlines()[place.line - 1]}"
        )
        seen[what] = seen.get(what, 0) + 1
        order.append((hashlib.sha256(f"{what} {seen[what]}".encode()).digest(), place))
    found: dict[tuple[str, str], Mutant] = {}
    of_line: dict[tuple[str, int], int] = {}
    for _, place in sorted(order):
        if number is not None:
            at = (place.module, place.line)
            of_line[at] = of_line.get(at, 0) + 1
            if len(found) >= number:
                break
            if of_line[at] > PER_LINE:
                continue
        made = mutant(place)
        if made is not None and made.key not in without:
            found.setdefault((made.module, made.source), made)
    return sorted(found.values(), key=lambda m: (modules.index(m.module), m.line, m.becomes))
