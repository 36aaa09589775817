"""The remedy as a change of the reader's own function: one expression, so that mask, mean and beta stay."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

# what goes from a remedy for stale samples where the loss is told of fresh ones only: the ratio is 1
_RATIOS = (
    ("w, rho = ", "w = "),
    (", (logp - behavior_logp).exp().detach()", ""),
    (", behavior_logp", ""),
    ("rho * ", ""),
)
_NO_GRADIENT = re.compile(r"@(?:torch\.)?(?:no_grad|inference_mode)\b.*")
_NAMES = ast.Name | ast.Subscript | ast.Attribute
_SHAPE = "_shape_of_expression"
_SHORT = 10  # lines of a function that is shown whole
_LONG = 76  # characters, beyond which a term gets a line of its own


class Rewritten(NamedTuple):
    """A function in which one statement is another.

    Attributes:
        source: The whole function.
        diff: With a minus in front lines that go, with a plus those that come; of a short function the others
            too, as they are.
        function: It, to be audited.
    """

    source: str
    diff: list[str]
    function: Callable[..., Any]


class _Source(NamedTuple):
    """A function of the reader.

    Attributes:
        function: Without its decorators of torch's.
        bound: What is called: the function, or the method of an instance.
        lines: Its lines.
        node: Its tree.
    """

    function: Any
    bound: Callable[..., Any]
    lines: list[str]
    node: ast.FunctionDef


def repaired(
    function: Any,
    bound: Callable[..., Any],
    names: dict[str, str],
    body: list[str],
    call: Callable[..., object],
) -> Iterator[Rewritten]:
    """Yield the reader's function with one expression replaced by a term, for each that may be the KL.

    An expression has the shape of the term that takes its place, and reads no mask where that is one value
    per token, so that the reduction around it stays. Inner ones come first. An audit says which is right.

    Args:
        function: A function, or a method taken from its class.
        bound: What is called: the function, or the method of an instance.
        names: What logp, ref_logp, behavior_logp and mask are called inside; see `names_inside`.
        body: Lines that compute ``kl`` from them.
        call: Runs a function in place of the reader's, once.
    """
    source = _parsed(function, bound)
    if source is None or {"logp", "ref_logp"} - set(names):
        return
    body = _of_these_samples(body, names)
    of_answers = any("mask" in line for line in body)
    if of_answers and "mask" not in names:
        return
    *first, last = _free_names(body, {x.id for x in ast.walk(source.node) if isinstance(x, ast.Name)})
    theirs = {n: v for n, v in names.items() if of_answers or n != "mask"}
    mask = names.get("mask", "")
    before, term = ([_in_their_names(x, theirs) for x in first], _in_their_names(last, theirs))
    term = term.partition(" = ")[2]
    masks = set() if of_answers or not mask else {ast.unparse(ast.parse(mask))}
    for statement, expression in _expressions(source.node, masks):
        if _shape(source, expression, call) == (1 if of_answers else 2):
            changed = _replaced(source, statement, expression, before, term)
            if changed is not None:
                yield changed


def _of_these_samples(body: list[str], names: dict[str, str]) -> list[str]:
    """The lines as they are, or without the ratio where the loss is told of fresh samples only: it is 1."""
    if "behavior_logp" in names:
        return body
    lines = [line for line in body if not line.startswith("rho = ")]
    for ratio, instead in _RATIOS:
        lines = [line.replace(ratio, instead) for line in lines]
    return lines


def _free_names(body: list[str], taken: set[str]) -> list[str]:
    """The lines with names of their own that the reader's function does not have."""
    own = {x.strip() for line in body for x in line.partition(" = ")[0].split(",")} & {
        "rho",
        "d",
        "w",
        "total",
    }
    for name in sorted(own & taken):
        body = [re.sub(rf"(?<![\w.]){name}(?!\w)", f"{name}_", line) for line in body]
    return body


def _in_their_names(line: str, names: dict[str, str]) -> str:
    """A line with what we call the inputs replaced, all at once, by what the reader does."""
    ours = "|".join(n for n in ("ref_logp", "behavior_logp", "logp", "mask") if n in names)
    return re.sub(rf"(?<![\w.])(?:{ours})(?!\w)", lambda m: names[m.group()], line)


def _expressions(node: ast.FunctionDef, without: set[str]) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Expressions of a function, each with its statement: of ``kl`` first, inner before outer ones."""
    places: list[tuple[ast.stmt, ast.expr, bool]] = []
    for statement in ast.walk(node):
        if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr):
            continue
        value = statement.value
        if value is None:
            continue
        target = ast.unparse(statement).partition("=")[0].lower()
        for x in ast.walk(value):
            compound = isinstance(x, ast.BinOp | ast.Call | ast.UnaryOp)
            if compound and not without & {ast.unparse(y) for y in ast.walk(x) if isinstance(y, _NAMES)}:
                places.append((statement, x, "kl" in target))  # type: ignore[arg-type]
    places.sort(key=lambda place: (not place[2], sum(1 for _ in ast.walk(place[1]))))
    yield from ((statement, x) for statement, x, _ in places)


def _shape(source: _Source, expression: ast.expr, call: Callable[..., object]) -> int | None:
    """Dimensions of the tensor that an expression is while the function runs; None without one."""
    seen: list[Any] = []
    text = _spliced(source.lines, expression, f"{_SHAPE}({_text(source.lines, expression)})")

    def note(x: Any) -> Any:
        seen.append(x.ndim if isinstance(x, torch.Tensor) else None)
        return x

    function = _compiled(source, "\n".join(text), {_SHAPE: note})
    if function is None:
        return None
    try:
        call(function)
    except ValueError:
        return None
    return seen[0] if seen and len(set(seen)) == 1 else None


def _replaced(
    source: _Source, statement: ast.stmt, expression: ast.expr, before: list[str], term: str
) -> Rewritten | None:
    """The function with a term in place of an expression, and what it needs in front of the statement."""
    alone = expression is getattr(statement, "value", None)
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    has_own_line = first >= source.node.body[0].lineno - 1 and first != source.node.lineno - 1

    def changed(text: str) -> list[str]:
        lines = _spliced(source.lines, expression, text, bracket=not alone)
        return lines[first : len(lines) - (len(source.lines) - last)]

    new = changed(term)
    if not alone and has_own_line and max(map(len, new)) > _LONG:
        taken = {x.id for x in ast.walk(source.node) if isinstance(x, ast.Name)}
        name = "kl" if "kl" not in taken else "kl_"
        before, new = [*before, f"{name} = {term}"], changed(name)
    if before and not has_own_line:  # def f(x): return x
        return None
    new = [*textwrap.indent("\n".join(before), " " * statement.col_offset).splitlines(), *new]
    text = "\n".join([*source.lines[:first], *new, *source.lines[last:]])
    function = _compiled(source, text, {})
    if function is None:
        return None
    changes = [*(f"- {x}" for x in source.lines[first:last]), *(f"+ {x}" for x in new)]
    start = source.node.lineno - 1
    if len(source.lines) - start <= _SHORT:
        return Rewritten(text, [*source.lines[start:first], *changes, *source.lines[last:]], function)
    return Rewritten(text, [f"{x[:2]}{x[2:].strip()}" for x in changes], function)


def _text(lines: list[str], x: ast.expr) -> str:
    return ast.get_source_segment("\n".join(lines), x) or ""


def _spliced(lines: list[str], x: ast.expr, text: str, *, bracket: bool = False) -> list[str]:
    """Lines with another text in place of an expression, in brackets where it had none and needs them."""
    first, last = x.lineno - 1, (x.end_lineno or x.lineno) - 1
    head = lines[first].encode()[: x.col_offset].decode()
    tail = lines[last].encode()[x.end_col_offset :].decode()
    has_brackets = head.endswith("(") and tail.startswith(")")
    if text.isidentifier():
        if has_brackets and not re.search(r"[\w)\]]\($", head):  # not those of a call
            head, tail = head[:-1], tail[1:]
    elif bracket and not has_brackets:
        text = f"({text})"
    return [*lines[:first], *f"{head}{text}{tail}".split("\n"), *lines[last + 1 :]]


def _compiled(source: _Source, text: str, more: dict[str, Any]) -> Callable[..., Any] | None:
    """The function of a text, without decorators, in the reader's own globals; None where it is no Python."""
    scope = {**getattr(source.function, "__globals__", {}), **more}
    try:
        tree = ast.parse(text)
        tree.body[0].decorator_list = []  # type: ignore[attr-defined]
        exec(compile(tree, "<changed>", "exec"), scope)
    except SyntaxError:
        return None
    function = scope[source.function.__name__]
    owner = getattr(source.bound, "__self__", None)
    if owner is None and next(iter(inspect.signature(function).parameters), "") == "self":
        return partial(function, None)
    return function if owner is None else partial(function, owner)


def undecorated(
    function: Any, bound: Callable[..., Any], call: Callable[..., object]
) -> Iterator[tuple[Rewritten, str]]:
    """Yield the reader's function with a helper whose gradient a decorator of torch's takes away, without it.

    Args:
        function: A function, or a method taken from its class.
        bound: What is called: the function, or the method of an instance.
        call: Runs a function in place of the reader's, once.

    Yields:
        The function as it is with the decorator off, and a sentence that names decorator and helper.
    """
    source = _parsed(function, bound)
    if source is None:
        return
    scope = getattr(source.function, "__globals__", {})
    for name in dict.fromkeys(x.id for x in ast.walk(source.node) if isinstance(x, ast.Name)):
        helper = scope.get(name)
        inner = getattr(helper, "__wrapped__", None)
        if inner is None or not inspect.isfunction(inner):
            continue
        try:
            lines = textwrap.dedent(inspect.getsource(inner)).splitlines()
        except (OSError, TypeError):
            continue
        heads = [x for x in lines if x.startswith("@")]
        if len(heads) != 1 or not _NO_GRADIENT.fullmatch(heads[0]):
            continue
        free = _compiled(source, "\n".join(source.lines), {name: inner})
        definition = next(x for x in lines if x.startswith(("def ", "async def ")))
        if free is not None:
            why = f"{heads[0]} on {name} takes its gradient away."
            yield Rewritten("\n".join(source.lines), [f"- {heads[0]}", definition], free), why


def _parsed(function: Any, bound: Callable[..., Any]) -> _Source | None:
    """The source of a function; None where there is none, or it closes over something."""
    if not inspect.isfunction(function) or function.__closure__:
        return None
    try:
        text = textwrap.dedent(inspect.getsource(function))
        node = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return _Source(function, bound, text.splitlines(), node) if isinstance(node, ast.FunctionDef) else None


def names_of_batch(function: Any, bound: Callable[..., Any], keys: dict[str, str]) -> dict[str, str]:
    """Expressions by which a function reads a batch, by our names: {"logp": ``batch["logprobs"]``}.

    Args:
        function: A function, or a method taken from its class.
        bound: What is called: the function, or the method of an instance.
        keys: Our names by the keys of the batch.
    """
    source = _parsed(function, bound)
    if source is None:
        return {}
    parameters = {a.arg for a in source.node.args.args}
    expressions: dict[str, str] = {}
    for x in ast.walk(source.node):
        if not (isinstance(x, ast.Subscript | ast.Attribute) and isinstance(x.value, ast.Name)):
            continue
        key = x.attr if isinstance(x, ast.Attribute) else getattr(x.slice, "value", None)
        if x.value.id in parameters and key in keys:
            expressions.setdefault(keys[key], _text(source.lines, x))
    return expressions


def names_inside(
    function: Any, call: Callable[[], object], wanted: dict[str, torch.Tensor]
) -> dict[str, str]:
    """What a function calls these tensors while it runs: {ours: theirs} of its own local variables.

    Args:
        function: Whose variables are looked at.
        call: Runs it once.
        wanted: Values by our names.
    """
    found: dict[str, str] = {}
    code = getattr(function, "__code__", None)

    def on_return(frame: Any, event: str, _: Any) -> None:
        if event != "return" or frame.f_code is not code:
            return
        for ours, value in wanted.items():
            for theirs, x in frame.f_locals.items():
                same = isinstance(x, torch.Tensor) and x.shape == value.shape and ours not in found
                if same and torch.allclose(x.detach().double(), value, atol=1e-12):
                    found[ours] = theirs

    before = sys.getprofile()
    sys.setprofile(on_return)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found
