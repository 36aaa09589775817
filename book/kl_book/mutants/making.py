"""Every one-symbol change of a function's body: the slips of someone who writes a loss down."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

OTHER = {"logprobs": "ref_logprobs", "ref_logprobs": "old_logprobs", "old_logprobs": "ref_logprobs"}
METHODS = {"min": "max", "max": "min", "sum": "mean", "mean": "sum"}
DROPPED = ("exp", "detach", "clamp")


class Mutant(NamedTuple):
    """A function with one change.

    Attributes:
        number: Which change of the function, from 1.
        change: What was done, in words.
        before: The line as it was.
        after: The line as it is.
        function: It, to be called.
    """

    number: int
    change: str
    before: str
    after: str
    function: Callable[..., Any]


def mutants_of(function: Callable[..., Any]) -> list[Mutant]:
    """Every mutant of a function of a file, in the order of its text; those that print alike are one."""
    source = textwrap.dedent(inspect.getsource(function))
    plain = ast.unparse(ast.parse(source)).splitlines()
    found: list[Mutant] = []
    seen: set[str] = set()
    for place, node in enumerate(_nodes(ast.parse(source))):
        for number, (change, _) in enumerate(_changes(node)):
            tree = ast.parse(source)
            _replace(tree, _nodes(tree)[place], number)
            text = ast.unparse(ast.fix_missing_locations(tree))
            if text in seen or text.splitlines() == plain:
                continue
            seen.add(text)
            before, after = next((a, b) for a, b in zip(plain, text.splitlines(), strict=True) if a != b)
            made = _compiled(text, function)
            found.append(Mutant(len(found) + 1, change, before.strip(), after.strip(), made))
    return found


def _compiled(text: str, function: Callable[..., Any]) -> Callable[..., Any]:
    scope = dict(vars(inspect.getmodule(function)))
    exec(compile(text, "<mutant>", "exec"), scope)
    made: Callable[..., Any] = scope[function.__name__]
    return made


def _nodes(tree: ast.Module) -> list[ast.expr]:
    """The expressions of the body, as they are read."""
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    found = [n for line in definition.body[1:] for n in ast.walk(line) if isinstance(n, ast.expr)]
    axes = {id(n.operand) for n in found if isinstance(n, ast.UnaryOp) and _is_int(n.operand)}
    found = [n for n in found if id(n) not in axes]  # of another axis torch itself complains
    return sorted(found, key=lambda n: (n.lineno, n.col_offset, -(n.end_col_offset or 0)))


def _is_int(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _replace(tree: ast.Module, node: ast.expr, number: int) -> None:
    """Put a change of a node where the node stands."""
    new = list(_changes(node))[number][1]

    class Once(ast.NodeTransformer):
        def visit(self, x: ast.AST) -> Any:
            return new if x is node else self.generic_visit(x)

    Once().visit(tree)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(in words, another expression) for each change of this node alone."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if not isinstance(node.operand, ast.Constant):
            yield "a sign dropped", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "a constant doubled", ast.Constant(2 * node.value)  # type: ignore[operator]
    elif isinstance(node, ast.Name) and node.id in OTHER and isinstance(node.ctx, ast.Load):
        yield "another policy's log-probs", ast.Name(OTHER[node.id])
    elif isinstance(node, ast.Compare):
        flipped = {ast.Lt: ast.Gt, ast.Gt: ast.Lt}.get(type(node.ops[0]))
        if flipped:
            yield "a comparison flipped", ast.Compare(node.left, [flipped()], node.comparators)
    elif isinstance(node, ast.BinOp):
        yield from _operators(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _calls(node, node.func)


def _operators(node: ast.BinOp) -> Iterator[tuple[str, ast.expr]]:
    swapped: Mapping[type, tuple[str, ast.operator]] = {
        ast.Add: ("+ to -", ast.Sub()),
        ast.Sub: ("- to +", ast.Add()),
        ast.Div: ("/ to *", ast.Mult()),
        ast.Mult: ("* to /", ast.Div()),
        ast.Pow: ("a power to a product", ast.Mult()),
    }
    if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name) and "mask" in node.right.id:
        yield "a mask dropped", node.left
        return
    words, operator = swapped[type(node.op)]
    yield words, ast.BinOp(node.left, operator, node.right)
    if isinstance(node.op, ast.Sub) and not isinstance(node.right, ast.Constant):
        yield "a difference turned round", ast.BinOp(node.right, ast.Sub(), node.left)


def _calls(node: ast.Call, called: ast.Attribute) -> Iterator[tuple[str, ast.expr]]:
    """Of ``x.f(...)`` and ``torch.f(x, ...)``."""
    of_torch = isinstance(called.value, ast.Name) and called.value.id == "torch"
    if called.attr in DROPPED:
        yield f"{called.attr} dropped", node.args[0] if of_torch else called.value
    if called.attr in METHODS:
        other = copy.deepcopy(node)
        other.func = ast.Attribute(called.value, METHODS[called.attr])
        yield f"{called.attr} to {METHODS[called.attr]}", other
