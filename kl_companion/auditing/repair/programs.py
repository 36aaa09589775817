"""The functions of a reader's files that run inside a loss, and the same functions with edited text."""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial, partialmethod
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.unmasked import profiled

_OURS = {"kl_companion", "kl_book", "torch"}
_INSTALLED = tuple({sysconfig.get_path(x) for x in ("stdlib", "platstdlib", "purelib", "platlib")})
_NOTE = "_kl_companion_note"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NOTED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Attribute, ast.Subscript)
# what holds a function; anything else may answer to every name, as the functions of a framework's file do
_HOLDERS = (MethodType, staticmethod, classmethod, property, partial, partialmethod, CellType)
NotedValues = dict[ast.AST, torch.Tensor]


class Edit(NamedTuple):
    """Other text for a part of a unit: from the character ``start`` to the character before ``end``."""

    unit: Unit
    start: int
    end: int
    text: str


class Unit:
    """A statement at the top of a file, such as a definition, with everything inside.

    Attributes:
        file: Name of the file.
        first: Number of its first line, from 1.
        source: The text.
        tree: The syntax tree of ``source``.
        parents: The node around every node.
    """

    def __init__(self, file: str, first: int, lines: list[str]) -> None:
        self.file, self.first, self._lines = file, first, lines
        self.source = "".join(lines)
        self.tree = ast.parse(self.source)
        self.parents = {child: x for x in ast.walk(self.tree) for child in ast.iter_child_nodes(x)}

    def offset(self, line: int, column: int = 0) -> int:
        """Return the place of a character, of a line from 1 and a column in bytes."""
        before = sum(map(len, self._lines[: line - 1]))
        return before + len("".join(self._lines[line - 1 : line]).encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        """Return where the text of a node starts and ends."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.source[start:end]

    def around(self, node: ast.AST) -> Iterator[Any]:
        """Yield a node and the nodes around it, up to its statement."""
        while not isinstance(node, ast.stmt):
            yield node
            node = self.parents[node]
        yield node

    def statement(self, node: ast.AST) -> Any:
        """Return the statement that a node is in."""
        return [*self.around(node)][-1]

    def replaced(self, node: ast.AST, text: str) -> Edit:
        """Return the edit that puts a text in place of a node."""
        return Edit(self, *self.span(node), text)

    def inserted(self, place: int, text: str) -> Edit:
        """Return the edit that puts a text in front of a character."""
        return Edit(self, place, place, text)

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return ``source`` with the edits that are of this unit."""
        text = self.source
        for edit in sorted((e for e in edits if e.unit is self), key=lambda e: (-e.start, -e.end)):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text


class RanFunction(NamedTuple):
    """A function of the reader that ran.

    Attributes:
        unit: The statement at the top of its file that it is in.
        node: Its own definition.
        scope: Its globals.
        parameters: Tensors that were passed when it ran first.
        live: The functions of this definition; none where it is nested in one that ran.
        wrappers: Functions of torch around it, such as those of ``@torch.no_grad()``.
    """

    unit: Unit
    node: Any
    scope: dict[str, Any]
    parameters: dict[str, torch.Tensor]
    live: list[FunctionType]
    wrappers: list[FunctionType]


class Program:
    """The functions of the reader's own files that run in a call.

    Args:
        loss: What is audited.
        call: Runs it once.
    """

    def __init__(self, loss: Any, call: Callable[[], object]) -> None:
        ran: dict[CodeType, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {}

        def on_call(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code not in ran and _is_of_reader(code.co_filename, frame.f_globals):
                names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                values = {n: frame.f_locals.get(n) for n in names}
                tensors = {n: x.detach().clone() for n, x in values.items() if isinstance(x, torch.Tensor)}
                ran[code] = frame.f_globals, tensors

        with profiled(on_call):
            call()
        scopes = {id(scope): scope for scope, _ in ran.values()}
        functions = _functions([loss, *(x for scope in scopes.values() for x in scope.values())])
        units: dict[tuple[str, int], Unit] = {}
        self.functions: list[RanFunction] = []
        for code, (scope, tensors) in ran.items():
            if place := _place(code, scope, units):
                live = [f for f in functions if f.__code__ is code]
                wrappers = [f for f in functions if _is_of_torch(f) and inspect.unwrap(f) in live]
                self.functions.append(RanFunction(*place, scope, tensors, live, wrappers))
        own = _functions([loss])
        self.functions.sort(key=lambda f: not any(x in own for x in f.live))

    @cached_property
    def units(self) -> list[Unit]:
        """The units of all functions."""
        return list(dict.fromkeys(f.unit for f in self.functions))

    @property
    def pasted(self) -> tuple[list[str], dict[str, str]] | None:
        """Lines that became a function, as they were pasted; None of a function."""
        return self.functions[0].scope.get("__pasted__")

    def shared(self, f: RanFunction) -> bool:
        """Whether a function is of another file than the loss, or other code than what ran names it too."""
        file = self.functions[0].unit.file
        if f.unit.file != file:
            return True
        ran = {g.unit.first - 1 + first_line(g.node) for g in self.functions if g.unit.file == file}
        todo: list[Any] = [ast.parse("".join(linecache.getlines(file, f.scope)))]
        while todo:
            x = todo.pop()
            if f.node.name in (getattr(x, "id", ""), getattr(x, "attr", "")):
                return True
            if not (isinstance(x, _DEFINITIONS) and first_line(x) in ran):
                todo += ast.iter_child_nodes(x)
        return False

    @contextmanager
    def running(self, edits: Iterable[Edit], freed: Iterable[RanFunction] = ()) -> Iterator[None]:
        """Have the edits in force inside: functions that ran have the code of the edited text.

        Args:
            edits: Of any unit.
            freed: Functions whose decorators of torch do nothing.

        Raises:
            SyntaxError: edited text that is not Python.
            ValueError: edited text that lacks a function.
        """
        edits = list(edits)
        codes = [x for u in {e.unit: None for e in edits} for x in self._codes(u, ast.parse(u.edited(edits)))]
        cells = [(w.__wrapped__, c) for f in freed for w in f.wrappers for c in w.__closure__ or ()]  # type: ignore[attr-defined]
        contexts = [(c, "cell_contents", nullcontext) for inner, c in cells if c.cell_contents is not inner]
        with _assigned([*codes, *contexts]):
            yield

    def _codes(self, unit: Unit, tree: ast.Module) -> Iterator[tuple[FunctionType, str, CodeType]]:
        """Yield the code that each function of a unit has in another tree of it."""
        old, new = ([*_definitions(compile(x, unit.file, "exec"))] for x in (unit.tree, tree))
        if [x.co_name for x in old] != [x.co_name for x in new]:
            raise ValueError("the edited text has other functions, expected the same")
        for f in self.functions:
            place = first_line(f.node), f.node.name
            for live in f.live if f.unit is unit else ():
                code = next(
                    y for x, y in zip(old, new, strict=True) if (x.co_firstlineno, x.co_name) == place
                )
                if code.co_freevars != live.__code__.co_freevars:
                    raise ValueError(f"the edited text of {f.node.name} closes over other variables")
                yield live, "__code__", code

    def noted(self, call: Callable[[], object]) -> NotedValues:
        """Run a loss once, up to where it fails, and return the first tensor that each expression was."""
        values: NotedValues = {}
        nodes: list[ast.AST] = []
        codes: list[tuple[FunctionType, str, CodeType]] = []

        def note(number: int, x: Any) -> Any:
            if isinstance(x, torch.Tensor) and nodes[number] not in values:
                values[nodes[number]] = x.detach().clone()
            return x

        for unit in self.units:
            tree = ast.parse(unit.source)
            for number, node in enumerate(ast.walk(tree), len(nodes)):
                node.number = number  # type: ignore[attr-defined]
            nodes += ast.walk(unit.tree)
            codes += self._codes(unit, ast.fix_missing_locations(_Noting().visit(tree)))
        setattr(builtins, _NOTE, note)
        try:
            with _assigned(codes), suppress(ValueError):
                call()
        finally:
            delattr(builtins, _NOTE)
        return values


class _Noting(ast.NodeTransformer):
    """Wraps every expression that is read in a call of a function that notes its value."""

    def visit(self, node: Any) -> Any:
        if isinstance(node, ast.pattern):
            return node
        number: int = node.number
        new: Any = self.generic_visit(node)
        if isinstance(node, _NOTED) and isinstance(getattr(node, "ctx", None), ast.Load | None):
            return ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(number), new], [])
        return new


def _is_of_reader(file: str, scope: dict[str, Any]) -> bool:
    return scope.get("__name__", "").partition(".")[0] not in _OURS and not file.startswith(_INSTALLED)


def _is_of_torch(function: FunctionType) -> bool:
    return function.__globals__.get("__name__", "").partition(".")[0] in ("torch", "kl_book")


def _place(
    code: CodeType, scope: dict[str, Any], units: dict[tuple[str, int], Unit]
) -> tuple[Unit, Any] | None:
    """Return the unit that a code is in, and its definition; None without a text."""
    file, line = code.co_filename, code.co_firstlineno
    lines = linecache.getlines(file, scope)
    try:
        tops = ast.parse("".join(lines)).body
    except SyntaxError:
        return None
    for top in tops:
        first = first_line(top)
        if first <= line <= (top.end_lineno or 0):
            if (file, first) not in units:
                units[file, first] = Unit(file, first, lines[first - 1 : top.end_lineno])
            unit = units[file, first]
            here = line - first + 1, code.co_name
            definitions = (x for x in ast.walk(unit.tree) if isinstance(x, _DEFINITIONS))
            node = next((x for x in definitions if (first_line(x), x.name) == here), None)
            return None if node is None else (unit, node)
    return None


def first_line(node: Any) -> int:
    """Return the number of the first line of a statement, which of a definition may be a decorator's."""
    return int(min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", ()))]))


def _functions(roots: Iterable[Any]) -> dict[FunctionType, None]:
    """Return all functions that are among values, or in their classes, closures and wrappers."""
    found: dict[FunctionType, None] = {}
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, FunctionType):
            found[x] = None
            todo += [getattr(x, "__wrapped__", None), *gc.get_referents(*x.__closure__ or ())]
        elif isinstance(x, _HOLDERS):
            todo += gc.get_referents(x)
        elif isinstance(x, type):
            todo += [y for base in x.__mro__ if _is_plain(base) for y in vars(base).values()]
        elif _is_plain(type(x)):
            todo.append(type(x))
    return found


def _is_plain(cls: type) -> bool:
    """Whether a class may be the reader's."""
    return cls.__module__.partition(".")[0] not in {*_OURS, *sys.stdlib_module_names}


def _definitions(code: CodeType) -> Iterator[CodeType]:
    """Yield the codes of all functions and classes inside of one, in the order of the text."""
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from () if x.co_name.startswith("<") else (x,)
            yield from _definitions(x)


@contextmanager
def _assigned(values: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Have attributes of objects set to values inside."""
    values = list(values)
    before = [(x, name, getattr(x, name)) for x, name, _ in values]
    try:
        for x in values:
            setattr(*x)
        yield
    finally:
        for x in before:
            setattr(*x)
