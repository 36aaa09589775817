"""A loss out of text as somebody pastes it: a file with functions, or a few lines of a training loop.

What such lines read without having made it becomes the parameters of a function, ``self.args.beta`` one named
beta; what they make last is what it returns. Names that every trainer imports are there, whether the text
imports them or not.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from kl_companion.auditing.reading.helpers import HELPERS, lend, usual_imports
from kl_companion.auditing.reading.names import owner_of_model
from kl_companion.checks import unknown_name

PASTED = "pasted"  # the name of the function that lines become
_MOST_NAMES = 12  # of functions that a message lists
FILE = "<pasted>"  # the file that its lines stand in, for tracebacks
_LOGP = re.compile(r"log_?(p|prob|it)s?", re.I)
_NEXT = re.compile(r",\s*(?=[\w.]+\s*=)")  # a comma before another name, not one inside a list
_MADE_BY = (ast.FunctionDef, ast.ClassDef)
# fields of syntax trees that are computed before or after the others: what is bound, then what reads it
_ORDER = {"generators": -1, "target": 1, "targets": 1, "body": 2, "orelse": 2, "ifs": 2}


class SeveralLosses(ValueError):
    """A text with several functions that could be the loss; ``names`` are theirs."""

    def __init__(self, where: str, names: list[str]) -> None:
        some = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} others" if len(names) > _MOST_NAMES else ""
        super().__init__(f"{where} has several functions, expected the name of one: {some}{more}")
        self.names = names


def pasted_loss(text: str, name: str | None = None) -> Any:
    """Return the loss in a text, executed as Python.

    Args:
        text: Python code; an indentation that all of it has is taken off.
        name: Which function, method or class; by default the only one that no other uses, or, where there is
            none, the lines themselves as a function.

    Raises:
        ValueError: text that is no Python or does not run, several functions to choose from, or no loss.
    """
    code = textwrap.dedent(text).strip("\n") + "\n"
    tree, pasted = _parsed(code), None
    if not _defined(tree):
        if name not in (None, PASTED):
            raise ValueError(f"the text has no function {name!r}: expected one, or no name for lines alone")
        pasted = text.strip("\n").splitlines(), {x.attr: ast.unparse(x) for x in _held(tree)}
        code, name = _as_function(code, tree), PASTED
        tree = _parsed(code)
    path = loss_in(tree, "the text") if name is None else name
    loss: Any = _executed(code, pasted)
    for part in path.split("."):
        if not callable(getattr(loss, part, None)):
            raise unknown_name("function of the text:", path, [*_defined(tree)] or ["(none)"])
        loss = getattr(loss, part)
    return loss


def loss_in(tree: ast.Module, where: str) -> str:
    """Return the only function or class of a file that no other uses; of a class without a forward, its loss.

    Raises:
        ValueError: there is none, or several.
    """
    made = _defined(tree)
    if not made:
        raise ValueError(f"{where} has no function, expected a loss")
    name = _only(made, where)
    methods = {n: m for n, m in _defined(made[name]).items() if n[:2] != "__" or n == "__call__"}
    called = {"forward", "__call__"} & methods.keys()
    if not methods or called or not isinstance(made[name], ast.ClassDef):
        return name
    return f"{name}.{_only(methods, f'the class {name}', f'{name}.')}"


def _only(made: Mapping[str, ast.AST], where: str, path: str = "") -> str:
    """Return the one of these that no other reads, or the only one of those that is called a loss."""
    used = {
        other
        for name, node in made.items()
        for x in ast.walk(node)
        if (other := getattr(x, "attr" if path else "id", "")) in made and other != name
    }
    left = [name for name in made if name not in used and (path or not name.startswith("_"))]
    scored = [name for name in left if any(_LOGP.search(x.arg) for x in _arguments(made[name]))]
    for choice in (left, [name for name in left if "loss" in name.lower()], scored):
        if len(choice) == 1:
            return choice[0]
    raise SeveralLosses(where, [f"{path}{name}" for name in left or made])


def _arguments(node: ast.AST) -> list[ast.arg]:
    return [x for x in ast.walk(node) if isinstance(x, ast.arg) and not isinstance(node, ast.ClassDef)]


def pair(text: str, option: str) -> tuple[str, str]:
    """Return ``("a", "b")`` of ``a=b``; ValueError without an equals sign."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise ValueError(f"{option} got {text!r}, expected {option} NAME=VALUE")
    return name.strip(), value.strip()


def pairs(text: str, option: str) -> dict[str, str]:
    """Return several of them, ``a=b, c=d``; none of an empty text."""
    return dict(pair(part, option) for part in _NEXT.split(text) if text.strip())


def value_of(text: str) -> Any:
    """Return a number, a truth value, None or a list where the text is one in Python, else the text."""
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


def _defined(tree: ast.AST) -> dict[str, ast.AST]:
    return {node.name: node for node in getattr(tree, "body", ()) if isinstance(node, _MADE_BY)}


def _parsed(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(f"line {error.lineno} is no Python: {error.msg}: {line}") from None


def _as_function(code: str, tree: ast.Module) -> str:
    """Return lines as a function of what they read, which returns what they make last.

    Calls of what a trainer holds, whose results nobody takes, are left out: they are of no loss. Attributes
    of ``self`` become parameters, ``self.args.beta`` one named beta.
    """
    code = _until_backward(code, tree)
    tree = _parsed(code)
    calls = [x for x in ast.walk(tree) if isinstance(x, ast.Expr) and isinstance(x.value, ast.Call)]
    logging = [x for x in calls if _is_selfs(x.value)]
    left_out = {id(x) for call in logging for x in ast.walk(call)}
    edits: list[tuple[Any, str]] = [(x, "pass" + "\n" * (_end(x) - x.lineno)) for x in logging]
    edits += [(x, x.attr) for x in _held(tree) if id(x) not in left_out and x.lineno == _end(x)]
    code = _edited(code, edits)
    tree = _parsed(code)
    returned = any(isinstance(node, ast.Return) for node in ast.walk(tree))
    last = "" if returned else _last(tree)
    if last:
        code += f"return {last}\n"
    elif not returned:
        code = _edited(code, [(tree.body[-1], f"return {ast.get_source_segment(code, tree.body[-1])}")])
    free = _free(tree)
    so_far = [f"{last}=0.0"] * (last in free)  # loss = loss + ...: what was added before is not here
    parameters = ", ".join([name for name in free if name != last] + so_far)
    return f"def {PASTED}({parameters}):\n{textwrap.indent(code, '    ')}"


def _until_backward(code: str, tree: ast.Module) -> str:
    """Return the lines of a loop up to ``loss.backward()``, with the loss returned in its place."""
    for line in tree.body:
        calls = [(node, loss) for node in ast.walk(line) if (loss := _differentiated(node)) is not None]
        if calls:
            node, loss = calls[0]
            lines = "\n".join(code.splitlines()[: _end(line)]) + "\n"
            return _edited(lines, [(node, f"return {ast.unparse(loss)}")])
    return code


def _differentiated(node: ast.AST) -> ast.expr | None:
    """Return of which loss a line takes the gradient; None of another line."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward"), args=[loss, *_])):
            return loss  # accelerator.backward(loss)
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Call(args=[loss]), attr="backward"), args=[])
        ):
            return loss  # scaler.scale(loss).backward()
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=loss, attr="backward"), args=[])):
            return loss
    return None


def _edited(code: str, edits: list[tuple[Any, str]]) -> str:
    """Return code in which nodes of its syntax tree have other texts."""
    data = code.encode()
    begins = [0, *itertools.accumulate(len(line) + 1 for line in data.split(b"\n"))]
    for node, text in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        begin, end = begins[node.lineno - 1] + node.col_offset, begins[_end(node) - 1] + node.end_col_offset
        data = data[:begin] + text.encode() + data[end:]
    return data.decode()


def _end(node: ast.expr | ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _held(tree: ast.Module) -> list[ast.Attribute]:
    """Return the attributes that lines read of ``self``."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    called |= {id(node.value) for node in attributes}
    held = [
        node
        for node in attributes
        if (id(node) not in called and _is_selfs(node.value))
        or (isinstance(node.value, ast.Name) and node.value.id == "self" and owner_of_model(node.attr))
    ]
    inner = {id(x) for node in held for x in ast.walk(node.value)}  # self.groups in self.groups[0].beta
    return [node for node in held if id(node) not in inner]


def _is_selfs(node: ast.expr) -> bool:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == "self"


def _last(tree: ast.Module) -> str:
    """Return the name of what lines make last, "" of an expression; ValueError where they end in neither."""
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
    """Return the names that lines read before they make them, in order; of functions only models."""
    called = {x.func.id for x in ast.walk(tree) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)}
    defined = {name for name in called if not owner_of_model(name, called=True)}
    defined |= {*dir(builtins), *usual_imports(), *HELPERS} - {"input"}
    free: dict[str, None] = {}
    augmented = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for node in _in_order(tree):
        if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Load) or id(node) in augmented):
            free |= {} if node.id in defined else {node.id: None}
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name | ast.arg):
            defined.add(node.id if isinstance(node, ast.Name) else node.arg)
    return list(free)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, as they are computed: what is read before what is made of it."""
    for _, value in sorted(ast.iter_fields(node), key=lambda field: _ORDER.get(field[0], 0)):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _in_order(part)
    yield node


def _executed(code: str, pasted: tuple[list[str], dict[str, str]] | None) -> ModuleType:
    """Return the text as a module, whose lines tracebacks and `inspect` find.

    Of lines that became a function the module has ``__pasted__``: the lines as they were, and what each
    attribute of ``self`` was.

    Raises:
        ValueError: it raised something.
    """
    module = ModuleType("_pasted")
    file = module.__file__ = FILE
    vars(module).update(usual_imports(), __pasted__=pasted)
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(code, file, "exec"), vars(module))
    except Exception as error:  # the reader's own code: whatever it raises is the answer
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"the text failed with {said}, expected code that runs") from error
    lend(module, ast.parse(code))
    return module
