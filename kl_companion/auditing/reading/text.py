"""The text of a function, read once: its parameters, its syntax tree, and the numbers that it contains."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import linecache
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from types import CodeType, FrameType
from typing import Any

import torch

_SAME_NUMBERS = {"clone", "contiguous", "cpu", "detach", "double", "float", "to"}  # methods of tensors
_MOST = 40  # numbers of a long function are many, and few of them are a temperature


class FunctionText:
    """A function, its parameters and its syntax tree.

    Attributes:
        call: The function, method, module or object that is called.
        function: The Python function of it.
        owner: What ``self`` is in it.
        values: What its names are, where that is known, see `knowing`.
        source: Its text; "" where there is none, as of a function typed into a prompt.
        nodes: Of its syntax tree; none where there is no text.
    """

    def __init__(self, call: Any, owner: Any = None) -> None:
        plain = getattr(call, "__func__", call)
        if not inspect.isfunction(plain):
            plain = getattr(type(call), "forward", type(call).__call__)
        self.call = call
        self.function: Any = plain
        self.owner = getattr(call, "__self__", call) if owner is None else owner
        self.values: dict[str, Any] = {}
        try:
            self.source = inspect.getsource(plain)
            self.nodes = list(ast.walk(ast.parse(textwrap.dedent(self.source))))
        except (OSError, TypeError, SyntaxError):
            self.source, self.nodes = "", []

    @cached_property
    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of a function or of a module's forward; ValueError where they cannot be read."""
        try:
            return list(inspect.signature(getattr(self.call, "forward", self.call)).parameters.values())
        except (TypeError, ValueError) as error:
            why = f"{label_of(self.call)} has no signature that can be read, expected a Python function"
            raise ValueError(why) from error

    @cached_property
    def names(self) -> dict[str, Any]:
        """Values of names of the closure and of the module."""
        try:
            found = inspect.getclosurevars(self.function)
        except (TypeError, ValueError):  # not Python; or a name of the closure that has no value yet
            return {}
        return {**found.nonlocals, **found.globals, **found.nonlocals}

    def knowing(self, values: Mapping[str, Any]) -> FunctionText:
        """Return the same text with values of its names: those of the caller, then assigned constants."""
        text = copy.copy(self)
        text.values = dict(values)
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text.values.setdefault(node.targets[0].id, text.value(node.value))
        return text

    def free(self, name: str) -> Any:
        """Return the value of a name that the function does not bind; None of an unknown one."""
        return self.names.get(name, getattr(self.function, "__globals__", {}).get(name))

    def value(self, node: ast.expr) -> Any:
        """Return the value of a constant, a name, an attribute or an entry; None where it is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute) and (name := ast.unparse(node)) in self.values:
            return self.values[name]
        if isinstance(node, ast.Name):
            return self.owner if node.id == "self" else self.free(node.id)
        if isinstance(node, ast.Attribute):
            key: Any = node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
        else:
            return None
        fields = self.value(node.value)
        return (fields if isinstance(fields, Mapping) else getattr(fields, "__dict__", {})).get(key)

    def helper(self, call: ast.Call) -> Any:
        """Return the function of the same file that is called; None of another."""
        name = ast.unparse(call.func)
        if name.startswith("self.") and name.count(".") == 1:
            found = inspect.getattr_static(self.owner, name[5:], None)
            found = getattr(found, "__func__", found)  # of a static or a class method
        else:
            found = self.free(name)
        same = inspect.isfunction(found) and found.__code__.co_filename == self.function.__code__.co_filename
        return found if same and found is not self.function else None

    @cached_property
    def whole(self) -> str:
        """The text of its file; its own where there is none."""
        lines = linecache.getlines(self.function.__code__.co_filename) if self.nodes else []
        return "".join(lines) or self.source

    @cached_property
    def asked(self) -> list[str]:
        """The texts by which it asks for entries: ``batch["advantages"]``, ``batch.get("labels")``."""
        keys = [n.slice for n in self.nodes if isinstance(n, ast.Subscript)]
        keys += [n.args[0] for n in self.nodes if isinstance(n, ast.Call) and n.args]
        return [k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str)]

    def returned(self, function: str) -> list[str]:
        """Return the names that the results of a function of another file are assigned to."""
        entries = _assignments(self.function.__code__) if self.nodes else []
        return next((names for _, called, names in entries if called == function), [])

    @contextmanager
    def lending(self, names: Mapping[str, Any]) -> Iterator[None]:
        """Define names in its file, inside only."""
        there = getattr(self.function, "__globals__", {})
        there.update(names)
        try:
            yield
        finally:
            for name in names:
                there.pop(name, None)

    def passed_on(self, name: str) -> bool:
        """Whether it is only an argument of a method, or of a function that is not in its file."""
        inside: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Call) and _is_others(node.func) and self.helper(node) is None:
                inside |= {id(x) for argument in [*node.args, *node.keywords] for x in ast.walk(argument)}
        uses = [n for n in self.nodes if isinstance(n, ast.Name) and n.id == name]
        return bool(uses) and all(id(n) in inside for n in uses)

    def called(self, name: str) -> bool:
        """Whether a variable is called, or a method of it that no tensor has."""
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            path = ast.unparse(node.func).split(".")
            if path[0] == name and not (path[1:] and hasattr(torch.Tensor, path[-1])):
                return True
        return False

    def has(self, pattern: str) -> bool:
        """Whether a regular expression occurs in the text."""
        return re.search(pattern, self.source) is not None

    def numbers(self, values: Iterable[Any] = ()) -> tuple[float, ...]:
        """Return the positive numbers of the function: of options, of its closure and module, of its text.

        Args:
            values: Values of its options and defaults.
        """
        fields = [] if inspect.isfunction(self.owner) else getattr(self.owner, "__dict__", {}).values()
        found = [*values, *fields, *self.names.values()]
        found += [node.value for node in self.nodes if isinstance(node, ast.Constant)]
        if not self.nodes:
            found += getattr(getattr(self.function, "__code__", None), "co_consts", ())
        numbers = (float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool))
        return tuple(dict.fromkeys(x for x in numbers if 0 < x < 1e3))[:_MOST]


def assigned_names(frame: FrameType, function: str) -> list[str]:
    """Return the names that the running statement of a frame gives to the results of a function.

    Args:
        frame: That calls it.
        function: Its name, without what is in front of a dot.

    Returns:
        One name for one object, several for a tuple; none where the results are not assigned as they are.
    """
    line = frame.f_lineno
    entries = _assignments(frame.f_code)
    return next((names for lines, called, names in entries if line in lines and called == function), [])


@lru_cache(maxsize=64)
def _assignments(code: CodeType) -> list[tuple[range, str, list[str]]]:
    """Return lines, the function whose results are assigned, and the names that receive them."""
    try:
        lines, begin = inspect.getsourcelines(code)
        nodes = ast.walk(ast.parse(textwrap.dedent("".join(lines))))
    except (OSError, SyntaxError):
        return []
    entries = []
    for node in nodes:
        call = _unchanged(node.value) if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(call, ast.Call):
            target = node.targets[0]
            names = [ast.unparse(x) for x in (target.elts if isinstance(target, ast.Tuple) else [target])]
            where = range(begin + node.lineno - 1, begin + (node.end_lineno or node.lineno))
            entries.append((where, ast.unparse(call.func).rpartition(".")[2], names))
    return entries


def _is_others(function: ast.expr) -> bool:
    """Whether a function is neither of torch nor of Python nor a method of a tensor."""
    path = ast.unparse(function).split(".")
    common = {"torch", "F", "nn", "math", "np", "super", *dir(builtins)}
    return path[0] not in common and not (path[1:] and hasattr(torch.Tensor, path[-1]))


def _unchanged(node: ast.expr) -> ast.expr:
    """Return what an expression is but for its columns, its dtype and its place in the graph."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _SAME_NUMBERS:
            return _unchanged(inner)
        case ast.Subscript(value=inner, slice=ast.Tuple() | ast.Slice()):
            return _unchanged(inner)
    return node


def label_of(loss: Any) -> str:
    """Return what a loss is called in a message."""
    name = getattr(loss, "name", None) or getattr(loss, "__qualname__", None) or type(loss).__name__
    return str(name).rpartition("<locals>.")[2]
