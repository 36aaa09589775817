"""A loss out of text as somebody pastes it: a file with functions, or a few lines of a training loop.

What such lines read without having made it becomes the parameters of a function, ``self.args.beta`` one named
beta; what they make last is what it returns. Names that every trainer imports are there, whether the text
imports them or not.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from kl_companion.checks import unknown_name

PASTED = "pasted"  # the name of the function that lines become
FILE = "<pasted>"  # the file that its lines stand in, for tracebacks
_IMPORTS = (
    "import math",
    "import torch",
    "import torch.nn as nn",
    "import torch.nn.functional as F",
    "from dataclasses import dataclass, field",
    "from typing import *",
)
_NEXT = re.compile(r",\s*(?=[\w.]+\s*=)")  # a comma before another name, not one inside a list
_MADE_BY = (ast.FunctionDef, ast.ClassDef)
# fields of syntax trees that come after the others: what is bound, then what reads it
_LATER = {"target": 1, "targets": 1, "body": 2, "orelse": 2, "ifs": 2, "elt": 2, "key": 2}


class SeveralLosses(ValueError):
    """A text with several functions that could be the loss; ``names`` are theirs."""

    def __init__(self, where: str, names: list[str]) -> None:
        super().__init__(f"{where} has several functions, expected the name of one: {', '.join(names)}")
        self.names = names


def pasted_loss(text: str, name: str | None = None) -> Any:
    """The loss in a text, executed as Python.

    Args:
        text: Python code; an indentation that all of it has is taken off.
        name: Which function, method or class; by default the only one that no other uses, or, where there is
            none, the lines themselves as a function.

    Raises:
        ValueError: text that is no Python or does not run, several functions to choose from, or no loss.
    """
    code = textwrap.dedent(text).strip("\n") + "\n"
    tree = _parsed(code)
    lines, held = text.strip("\n").splitlines(), _held(tree)
    pasted = None
    if not any(isinstance(node, _MADE_BY) for node in tree.body):
        if name not in (None, PASTED):
            raise ValueError(f"the text has no function {name!r}: expected one, or no name for lines alone")
        code = _without_logging(code, tree)
        code = _without_self(code, _parsed(code))
        code = _as_function(code, _parsed(code))
        tree, name, pasted = _parsed(code), PASTED, (lines, {x.attr: ast.unparse(x) for x in held})
    chosen = loss_in(tree, "the text") if name is None else name
    found: Any = _executed(code, pasted)
    for part in chosen.split("."):
        if not callable(getattr(found, part, None)):
            raise unknown_name("function of the text:", chosen, _defined(tree) or ["(none)"])
        found = getattr(found, part)
    return found


def loss_in(tree: ast.Module, where: str) -> str:
    """The only function or class of a file that no other one uses.

    Raises:
        ValueError: there is none, or several.
    """
    made = [node for node in tree.body if isinstance(node, _MADE_BY)]
    used = {
        other.id
        for node in made
        for other in ast.walk(node)
        if isinstance(other, ast.Name) and other.id != node.name
    }
    left = [node.name for node in made if node.name not in used and not node.name.startswith("_")]
    losses = [name for name in left if "loss" in name.lower()]
    for names in (left, losses):
        if len(names) == 1:
            return names[0]
    if not made:
        raise ValueError(f"{where} has no function, expected a loss")
    raise SeveralLosses(where, left or _defined(tree))


def pair(text: str, option: str) -> tuple[str, str]:
    """``("a", "b")`` of ``a=b``; ValueError without an equals sign."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise ValueError(f"{option} got {text!r}, expected {option} NAME=VALUE")
    return name.strip(), value.strip()


def pairs(text: str, option: str) -> dict[str, str]:
    """Several of them, ``a=b, c=d``; none of an empty text."""
    return dict(pair(part, option) for part in _NEXT.split(text) if text.strip())


def value_of(text: str) -> Any:
    """A number, a truth value, None or a list where the text is one in Python, else the text."""
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


def _defined(tree: ast.Module) -> list[str]:
    return [node.name for node in tree.body if isinstance(node, _MADE_BY)]


def _parsed(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(f"line {error.lineno} is no Python: {error.msg}: {line}") from None


def _without_logging(code: str, tree: ast.Module) -> str:
    """Calls of what a trainer holds, whose results nobody takes, left out: they are of no loss."""
    lines = code.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_selfs(node.value):
            more = (node.end_lineno or node.lineno) - node.lineno
            left = [" " * node.col_offset + "pass", *[""] * more]
            lines[node.lineno - 1 : node.lineno + more] = left
    return "\n".join(lines) + "\n"


def _without_self(code: str, tree: ast.Module) -> str:
    """``self.args.beta`` and its like as ``beta``: what a trainer holds becomes a parameter."""
    lines = [line.encode() for line in code.splitlines()]
    for node in sorted(_held(tree), key=lambda node: -node.col_offset):
        if node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = (
                line[: node.col_offset] + node.attr.encode() + line[node.end_col_offset :]
            )
    return b"\n".join(lines).decode() + "\n"


def _held(tree: ast.Module) -> list[ast.Attribute]:
    """The attributes that lines read of ``self``."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and id(node) not in called | inner and _is_selfs(node.value)
    ]


def _is_selfs(node: ast.expr) -> bool:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == "self"


def _as_function(code: str, tree: ast.Module) -> str:
    """Lines as a function of what they read, which returns what they make last."""
    returned = _last(tree)
    lines = code.splitlines()
    if isinstance(tree.body[-1], ast.Expr):
        first = tree.body[-1].lineno - 1
        lines[first] = f"return {lines[first]}"
    else:
        lines.append(f"return {returned}")
    body = "\n".join(f"    {line}" if line.strip() else "" for line in lines)
    free = _free(tree)
    so_far = [f"{returned}=0.0"] * (returned in free)  # loss = loss + ...: what was added before is not here
    return f"def {PASTED}({', '.join([name for name in free if name != returned] + so_far)}):\n{body}\n"


def _last(tree: ast.Module) -> str:
    """The name of what lines make last; of an expression nothing.

    Raises:
        ValueError: they end in neither.
    """
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Constant):
        return ""
    targets = last.targets if isinstance(last, ast.Assign) else [getattr(last, "target", None)]
    if isinstance(last, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and isinstance(targets[-1], ast.Name):
        return targets[-1].id
    raise ValueError(
        "the text has no function, and its last line makes no loss: expected a function, or lines that end "
        "in loss = ..."
    )


def _free(tree: ast.Module) -> list[str]:
    """The names that lines read before they make them, in order."""
    known = {*dir(builtins), *_given()} - {"input"}
    found: dict[str, None] = {}
    augmented = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for node in _in_order(tree):
        if isinstance(node, ast.Name):
            if (isinstance(node.ctx, ast.Load) or id(node) in augmented) and node.id not in known:
                found[node.id] = None
            elif isinstance(node.ctx, ast.Store):
                known.add(node.id)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    return list(found)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, as they are computed: what is read before what is made of it."""
    for name, value in sorted(ast.iter_fields(node), key=lambda field: _LATER.get(field[0], 0)):
        comprehended = name == "value" and isinstance(node, ast.DictComp)
        for part in () if comprehended else value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _in_order(part)
    if isinstance(node, ast.DictComp):
        yield from _in_order(node.value)
    yield node


def _given() -> dict[str, Any]:
    """What is there without an import."""
    found: dict[str, Any] = {}
    for line in _IMPORTS:
        exec(line, found)
    del found["__builtins__"]
    return found


def _executed(code: str, pasted: tuple[list[str], dict[str, str]] | None) -> ModuleType:
    """The text as a module, whose lines tracebacks and `inspect` find.

    Of lines that became a function the module has ``__pasted__``: the lines as they were, and what each
    attribute of ``self`` was.

    Raises:
        ValueError: it raised something.
    """
    module = ModuleType("_pasted")
    file = module.__file__ = FILE
    vars(module).update(_given(), __pasted__=pasted)
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(code, file, "exec"), vars(module))
    except Exception as error:  # the reader's own code: whatever it raises is the answer
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"the text failed with {said}, expected code that runs") from error
    return module
