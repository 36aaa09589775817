"""The functions of a reader's files that run inside a loss, and the same functions with edited text."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial, partialmethod
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.unmasked import profiled

_OURS = {"kl_companion", "kl_book", "torch"}
_INSTALLED = tuple({sysconfig.get_path(x) for x in ("stdlib", "platstdlib", "purelib", "platlib")})
_NOTE = "_kl_companion_note"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NOTED = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Attribute, ast.Subscript)
_NEVER_RUN = {"annotation", "returns", "decorator_list", "pattern", "type_params"}


class Edit(NamedTuple):
    """Other text for a part of a unit: from the character ``start`` to the character before ``end``."""

    unit: Unit
    start: int
    end: int
    text: str


class Unit:
    """A definition at the top of a file, with everything inside.

    Attributes:
        file: Name of the file.
        first: Number of its first line, from 1.
        head: What makes an indented definition a text of its own; "" for others.
        source: ``head`` and the text.
        tree: The syntax tree of ``source``.
        parents: The node around every node.
    """

    def __init__(self, file: str, first: int, text: str) -> None:
        self.file, self.first = file, first
        self.head = "if True:\n" if text[:1] in " \t" else ""
        self.source = self.head + text
        self.tree = ast.parse(self.source)
        self.parents = {child: x for x in ast.walk(self.tree) for child in ast.iter_child_nodes(x)}

    def offset(self, line: int, column: int) -> int:
        """Return the place of a character, of a line from 1 and a column in bytes."""
        start = self._starts[line - 1]
        return start + len(self.source[start : start + column].encode()[:column].decode())

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.source))]

    def span(self, node: Any) -> tuple[int, int]:
        """Return where the text of a node starts and ends."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.source[start:end]

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return ``source`` with the edits that are of this unit."""
        text = self.source
        for edit in sorted((e for e in edits if e.unit is self), key=lambda e: (-e.start, -e.end)):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text


class RanFunction(NamedTuple):
    """A function of the reader that ran.

    Attributes:
        unit: The definition at the top of its file that it is in.
        node: Its own definition.
        live: The function; None where it is nested in one that ran.
        wrappers: Functions of torch around it, such as those of ``@torch.no_grad()``.
    """

    unit: Unit
    node: Any
    live: Any
    wrappers: tuple[FunctionType, ...] = ()


class NotedValues(NamedTuple):
    """Values of expressions while a loss ran, the first of each: a tensor, or None.

    Attributes:
        values: By the node of the expression.
        parameters: By the node of a definition, of its parameters by name.
    """

    values: dict[ast.AST, torch.Tensor | None]
    parameters: dict[ast.AST, dict[str, torch.Tensor | None]]


class Program:
    """The functions of the reader's own files that run in a call.

    Args:
        loss: What is audited.
        call: Runs it once.
    """

    def __init__(self, loss: Any, call: Callable[[], object]) -> None:
        ran: dict[CodeType, dict[str, Any]] = {}

        def on_call(frame: Any, event: str, _: Any) -> None:
            if event == "call" and _is_of_reader(frame.f_code.co_filename, frame.f_globals):
                ran.setdefault(frame.f_code, frame.f_globals)

        with profiled(on_call):
            call()
        self._globals = {id(scope): scope for scope in ran.values()}
        live, wrappers = _functions([loss, *(x for scope in self._globals.values() for x in scope.values())])
        units: dict[tuple[str, int], Unit] = {}
        self.functions: list[RanFunction] = []
        for code, scope in ran.items():
            found = _unit(code, scope, units)
            if found is not None:
                self.functions.append(RanFunction(*found, live.get(code), tuple(wrappers.get(code, ()))))
        own, _ = _functions([loss])
        self.functions.sort(key=lambda f: f.live is None or f.live.__code__ not in own)

    @cached_property
    def units(self) -> list[Unit]:
        """The units of all functions."""
        return list(dict.fromkeys(f.unit for f in self.functions))

    @property
    def pasted(self) -> tuple[list[str], dict[str, str]] | None:
        """Lines that became a function, as they were pasted; None of a function."""
        live = self.functions[0].live
        return None if live is None else live.__globals__.get("__pasted__")

    def shared(self, f: RanFunction) -> bool:
        """Whether a function is of another file than the loss, or other code than what ran names it too."""
        if f.unit.file != self.functions[0].unit.file:
            return True
        inside = {x for g in self.functions for x in ast.walk(g.node)}
        others = [x for unit in self.units for x in ast.walk(unit.tree) if x not in inside]
        ran = {unit.first for unit in self.units}
        tops = _tops(ast.parse("".join(linecache.getlines(f.unit.file))))
        others += [x for top in tops if _first_line(top) not in ran for x in ast.walk(top)]
        return any(f.node.name in (getattr(x, "id", ""), getattr(x, "attr", "")) for x in others)

    @contextmanager
    def running(self, edits: Iterable[Edit], freed: Iterable[RanFunction] = ()) -> Iterator[None]:
        """Have the edits in force inside: functions that ran have the code of the edited text.

        Args:
            edits: Of any unit.
            freed: Functions whose decorators of torch do nothing.

        Raises:
            ValueError: edited text that is no Python, or that lacks a function.
        """
        edits = list(edits)
        codes = {}
        for unit in {e.unit: None for e in edits}:
            codes.update(self._codes(unit, _parsed(unit.edited(edits))))
        codes.update({w: _passing_on(w) for f in freed for w in f.wrappers})
        with _swapped(codes):
            yield

    def _codes(self, unit: Unit, tree: ast.Module) -> dict[FunctionType, CodeType]:
        """The code that each function of a unit has in another tree of it."""
        old, new = (_by_name(compile(x, unit.file, "exec")) for x in (unit.tree, tree))
        codes: dict[FunctionType, CodeType] = {}
        for f in self.functions:
            if f.unit is not unit or f.live is None:
                continue
            first = f.live.__code__.co_firstlineno - unit.first + 1 + unit.head.count("\n")
            key = next(k for k, c in old.items() if c.co_firstlineno == first and c.co_name == f.node.name)
            if key not in new or new[key].co_freevars != f.live.__code__.co_freevars:
                raise ValueError(f"the edited text has no function {f.node.name}, expected it to stay")
            codes[f.live] = new[key]
        return codes

    def noted(self, call: Callable[[], object]) -> NotedValues:
        """Run a loss once, and note the values of its expressions, up to where it fails."""
        notes = NotedValues({}, {})
        codes: dict[FunctionType, CodeType] = {}
        places: list[Callable[[Any], object]] = []

        def note(i: int, x: Any) -> Any:
            places[i](x.detach().clone() if isinstance(x, torch.Tensor) else None)
            return x

        for unit in self.units:
            tree = copy.deepcopy(unit.tree)
            originals = dict(zip(ast.walk(tree), ast.walk(unit.tree), strict=True))
            changed = _Noting(originals, notes, places).visit(tree)
            codes.update(self._codes(unit, ast.fix_missing_locations(changed)))
        for scope in self._globals.values():
            scope[_NOTE] = note
        try:
            with _swapped(codes), suppress(ValueError):
                call()
        finally:
            for scope in self._globals.values():
                del scope[_NOTE]
        return notes


class _Noting(ast.NodeTransformer):
    """Wraps every expression that runs in a call of a function that notes its value."""

    def __init__(
        self, originals: dict[Any, Any], notes: NotedValues, places: list[Callable[[Any], object]]
    ) -> None:
        self.originals, self.notes, self.places = originals, notes, places

    def _call(self, x: Any, note: Callable[[Any], object]) -> ast.Call:
        self.places.append(note)
        return ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(len(self.places) - 1), x], [])

    def generic_visit(self, node: Any) -> Any:
        original: Any = self.originals.get(node)
        for name, value in ast.iter_fields(node):
            if name in _NEVER_RUN or isinstance(node, ast.arguments):
                continue
            if isinstance(value, list):
                setattr(node, name, [self.visit(x) if isinstance(x, ast.AST) else x for x in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        if isinstance(node, _DEFINITIONS):
            values = self.notes.parameters.setdefault(original, {})
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            notes = [self._call(ast.Name(n, ast.Load()), partial(values.setdefault, n)) for n in names]
            node.body[:0] = [ast.Expr(note) for note in notes]
        if isinstance(node, _NOTED) and isinstance(getattr(node, "ctx", None), ast.Load | None):
            return self._call(node, partial(self.notes.values.setdefault, original))
        return node


def _is_of_reader(file: str, scope: dict[str, Any]) -> bool:
    return scope.get("__name__", "").partition(".")[0] not in _OURS and not file.startswith(_INSTALLED)


def _unit(
    code: CodeType, scope: dict[str, Any], units: dict[tuple[str, int], Unit]
) -> tuple[Unit, Any] | None:
    """The unit that a code is in, and its definition; None without a text."""
    file = code.co_filename
    lines = linecache.getlines(file, scope)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    for top in _tops(tree):
        if not _first_line(top) <= code.co_firstlineno <= top.end_lineno:
            continue
        first = _first_line(top)
        if (file, first) not in units:
            units[file, first] = Unit(file, first, "".join(lines[first - 1 : top.end_lineno]))
        unit = units[file, first]
        line = code.co_firstlineno - first + 1 + unit.head.count("\n")
        for node in ast.walk(unit.tree):
            if isinstance(node, _DEFINITIONS) and (_first_line(node), node.name) == (line, code.co_name):
                return unit, node
    return None


def _tops(node: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_DEFINITIONS, ast.ClassDef)):
            yield child
        else:
            yield from _tops(child)


def _first_line(node: Any) -> int:
    return int(min([node.lineno, *(x.lineno for x in node.decorator_list)]))


# what holds a function; anything else may answer to every name, as the functions of a framework's file do
_HOLDERS = (
    (MethodType | staticmethod | classmethod, "__func__"),
    (property, "fget"),
    (partial | partialmethod, "func"),
)


def _functions(
    roots: Iterable[Any],
) -> tuple[dict[CodeType, FunctionType], dict[CodeType, list[FunctionType]]]:
    """Functions by their code, and the wrappers of torch around them: of values, classes and wrappers."""
    found: dict[CodeType, FunctionType] = {}
    wrappers: dict[CodeType, list[FunctionType]] = {}
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        x = todo.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        inner: list[Any] = [getattr(x, name) for kind, name in _HOLDERS if isinstance(x, kind)]
        if isinstance(x, FunctionType):
            found[x.__code__] = x
            inner = [getattr(x, "__wrapped__", None)]
            inner += [c.cell_contents for c in x.__closure__ or () if not _is_empty(c)]
            if x.__globals__.get("__name__", "").partition(".")[0] in ("torch", "kl_book"):
                wrapped = inspect.unwrap(x)
                if isinstance(wrapped, FunctionType) and wrapped is not x:
                    wrappers.setdefault(wrapped.__code__, []).append(x)
        elif isinstance(x, type):
            inner = [y for base in x.__mro__ for y in vars(base).values() if _is_plain(base)]
        elif _is_plain(type(x)):
            inner.append(type(x))
        todo += [y for y in inner if callable(y) or isinstance(y, staticmethod | classmethod | property)]
    return found, wrappers


def _is_plain(cls: type) -> bool:
    """Whether a class may be the reader's."""
    return cls.__module__.partition(".")[0] not in {*_OURS, *sys.stdlib_module_names}


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:  # not yet filled
        return True


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"the edited text is no Python: {error}") from None


def _by_name(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """All codes inside of one, by qualified name and how often it came before."""
    found: dict[tuple[str, int], CodeType] = {}
    todo = [code]
    while todo:
        x = todo.pop(0)
        times = sum(name == x.co_qualname for name, _ in found)
        found[x.co_qualname, times] = x
        todo = [*(c for c in x.co_consts if isinstance(c, CodeType)), *todo]
    return found


def _passing_on(wrapper: FunctionType) -> CodeType:
    """The code of a wrapper that calls what it wraps and does nothing else."""
    names = wrapper.__code__.co_freevars
    wrapped = next(
        n
        for n, cell in zip(names, wrapper.__closure__ or (), strict=True)
        if not _is_empty(cell) and cell.cell_contents is wrapper.__wrapped__  # type: ignore[attr-defined]
    )
    lines = [f"def f({', '.join(names)}):", "    def w(*args, **kwargs):", f"        ({', '.join(names)},)"]
    scope: dict[str, Any] = {}
    exec("\n".join([*lines, f"        return {wrapped}(*args, **kwargs)", "    return w"]), scope)
    return next(c for c in scope["f"].__code__.co_consts if isinstance(c, CodeType))


@contextmanager
def _swapped(codes: dict[FunctionType, CodeType]) -> Iterator[None]:
    before = {f: f.__code__ for f in codes}
    try:
        for f, code in codes.items():
            f.__code__ = code
        yield
    finally:
        for f, code in before.items():
            f.__code__ = code
