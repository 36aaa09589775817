"""Statements of a chapter, and of its earlier cells those that a cell needs."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

Import = ast.Import | ast.ImportFrom


def needed(earlier: list[str], code: str) -> str:
    """Return the code that must run before a cell: what it needs of earlier cells, after all their imports.

    Imports are a statement for each name, so that one which fails leaves the others.

    Args:
        earlier: The code of the cells before it, in order.
        code: The code of the cell.
    """
    statements = [Statement(node) for cell in [*earlier, code] for node in ast.parse(cell).body]
    end = len(statements)
    start = end - len(ast.parse(code).body)
    needs = set(range(start, end))
    unresolved = [(name, i) for i in needs for name in statements[i].reads]
    while unresolved:
        name, before = unresolved.pop()
        for i in reversed(range(before)):
            s = statements[i]
            if name not in s.binds | s.changes:
                continue
            if i not in needs:
                needs.add(i)
                # a function reads its names when it is called, which may be after they are bound again
                at = start if isinstance(s.node, ast.FunctionDef) else i
                unresolved += [(each, at) for each in s.reads]
            if name not in s.changes:
                break
    nodes = [s.node for s in statements[:start]]
    imports = [each for node in nodes if isinstance(node, Import) for each in _one_by_one(node)]
    others = [node for i, node in enumerate(nodes) if i in needs and not isinstance(node, Import)]
    return "\n".join(map(ast.unparse, [*imports, *others]))


def _one_by_one(node: Import) -> list[ast.stmt]:
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]


class Statement:
    """A statement of a chapter: the names that it reads, and those that it binds or may change.

    The variable of a loop belongs to the loop.
    """

    def __init__(self, node: ast.stmt) -> None:
        self.node = node
        self.asserts = any(isinstance(n, ast.Assert) for n in ast.walk(node))
        table = symtable.symtable(ast.unparse(node), "chapter", "exec")
        own = table.get_symbols()
        loops = [n.target for n in ast.walk(node) if isinstance(n, ast.For)]
        self.binds = {s.get_name() for s in own if s.is_assigned() or s.is_imported() or s.is_namespace()}
        self.binds -= {name for target in loops for name in names_in(target)}
        self.reads = {s.get_name() for s in own if s.is_referenced()}
        self.reads |= {s.get_name() for scope in below(table) for s in scope.get_symbols() if s.is_global()}
        self.changes: set[str] = set()
        for n in ast.walk(node):
            if isinstance(n, ast.Attribute | ast.Subscript) and not isinstance(n.ctx, ast.Load):
                self.changes |= names_in(n.value)
            elif isinstance(n, ast.Expr) and isinstance(n.value, ast.Call):  # made for its effect
                self.changes |= changed_by(n.value)
            elif isinstance(n, ast.AugAssign):
                self.changes |= names_in(n.target)


def changed_by(call: ast.Call) -> set[str]:
    """Return what a call may change: the object that it is a method of, else all that it is passed."""
    if isinstance(call.func, ast.Attribute):
        return names_in(call.func.value)
    return set() if ast.unparse(call.func) in ("print", "display") else names_in(call) - names_in(call.func)


def below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """The scopes inside a scope: functions and comprehensions."""
    for child in table.get_children():
        yield child
        yield from below(child)


def names_in(node: ast.AST) -> set[str]:
    """Return the names of variables in an expression or a statement."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
