"""The term that was wanted in place of an expression of a reader, in the names that are there."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kl_companion.auditing.repair.edits import Change, last_name
from kl_companion.auditing.repair.programs import Edit, NotedValues, Program, RanFunction, Unit

_LONG = 76  # characters, beyond which a term gets a line of its own
# what goes from a term for stale samples where the function has none: the ratio is 1
_RATIOS = (
    (r"(?m)^rho = .*\n", ""),
    (r"w, rho = ", "w = "),
    (r", \(logp - behavior_logp\)\.exp\(\)\.detach\(\)", ""),
    (r", behavior_logp", ""),
    (r"rho \* ", ""),
)
_RHO = "rho = (logp - behavior_logp).exp().detach()"
_OURS = r"(?<![\w.])(?:ref_logp|behavior_logp|logp|mask)(?!\w)"
_OPERATIONS = ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.IfExp
_LOOPS = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp | ast.Lambda
Values = Mapping[str, torch.Tensor]


def terms(
    program: Program,
    notes: NotedValues,
    vanish: NotedValues,
    body: list[str],
    ours: Sequence[Values],
    first: Sequence[RanFunction] = (),
) -> Iterator[Change]:
    """Yield the functions with one expression replaced by a term, for each that may be the KL.

    An expression has the shape of the term that takes its place, and reads no mask where that is one value
    per token, so that the reduction around it stays. Those that vanish where the models agree come first, and
    inner ones before outer ones. In a function that the loss calls, the ratio of policy to sampler may lack:
    then its calls are multiplied by it, too.

    Args:
        program: The functions that ran.
        notes: Values of their expressions.
        vanish: The same where policy and reference agree.
        body: Lines that compute ``kl``.
        ours: What the loss is given, in the layouts that it may be given in.
        first: Functions whose expressions come first.
    """
    of_answers = any("mask" in line for line in body)
    places = []
    for f in program.functions:
        by_shape, masks = _names(f, notes, ours)
        place = 0 if f in first else 2 if f is program.functions[0] else 3 if program.shared(f) else 1
        for x in _own(f.node):
            value, at = notes.get(x), vanish.get(x)
            if not isinstance(x, ast.BinOp | ast.UnaryOp | ast.Call) or value is None:
                continue
            names = [n for s, n in by_shape.items() if value.shape == (s[:1] if of_answers else s)]
            if not names or (not of_answers and any(y in masks for y in ast.walk(x))):
                continue
            zero = at is not None and bool((at.double().abs() < 1e-9).all()) and bool(value.any())
            size = sum(1 for _ in ast.walk(x))
            target = ast.unparse(f.unit.statement(x)).partition("=")[0].lower()
            places.append(((place, not zero, "kl" not in target, size), f, x, names[0]))
    for _, f, x, theirs in sorted(places, key=lambda place: place[0]):
        change = _replaced(f, x, _in_names(body, theirs))
        if change is None:
            continue
        if f is not program.functions[0]:
            both = (change.beside(ratio) for ratio in _ratios(program, notes, ours, f))
            yield from (x for x in both if x is not None)
        yield change


def _names(
    f: RanFunction, notes: NotedValues, ours: Sequence[Values]
) -> tuple[dict[tuple[int, ...], dict[str, str]], set[ast.AST]]:
    """Find what a function calls log-probs, their difference and the mask, by their values.

    Returns:
        Texts by our names, ``"+"`` for log-ratios and ``"-"`` for minus them, by the shape of the log-probs;
        and the nodes that are the mask.
    """
    by_shape: dict[tuple[int, ...], dict[str, str]] = {}
    masks: set[ast.AST] = set()
    values: list[tuple[Any, str, torch.Tensor]] = [(None, n, x) for n, x in f.parameters.items()]
    for x in sorted(_own(f.node), key=lambda x: not isinstance(x, ast.Name)):
        if isinstance(x, ast.Name | ast.Attribute | ast.Subscript) and x in notes:
            values.append((x, f.unit.text(x), notes[x]))
    for given in ours:
        mask = given["mask"].bool()[:, -given["logp"].shape[1] :]
        wanted = {**given, "+": given["logp"] - given["ref_logp"], "-": given["ref_logp"] - given["logp"]}
        for node, text, value in values:
            for name in (n for n, y in wanted.items() if same(value, y, mask if n != "mask" else None)):
                if name == "mask" and node is not None:
                    masks.add(node)
                if "(" not in text:
                    by_shape.setdefault(tuple(value.shape), {}).setdefault(name, text)
    return by_shape, masks


def same(x: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether a value is one of ours: all of it, an answer of it, or what is under the mask."""
    masked = mask is not None and mask.shape == theirs.shape
    inside = mask if mask is not None and masked else torch.ones_like(theirs, dtype=torch.bool)
    if x.shape != theirs.shape:
        if not masked or not x.ndim or not x.numel():
            return False
        if x.ndim == 1 and len(x) == int(inside.sum()):
            theirs, inside = theirs[inside], torch.ones_like(x, dtype=torch.bool)
        else:
            x = x if x.ndim > 1 else x.unsqueeze(0)
            theirs, inside = (y[: len(x), : x.shape[1]] for y in (theirs, inside))
    return x.shape == theirs.shape and torch.allclose(x.double()[inside], theirs[inside], atol=1e-9, rtol=0)


def _own(node: Any) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions inside."""
    todo = list(node.body)
    while todo:
        x = todo.pop(0)
        if not isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield x
            todo += ast.iter_child_nodes(x)


def _in_names(body: list[str], names: Mapping[str, str]) -> list[str] | None:
    """The lines in a function's own names, without a ratio where it has none; None where names lack."""
    text = "\n".join(body)
    for ratio, instead in _RATIOS if "behavior_logp" not in names else ():
        text = re.sub(ratio, instead, text)
    if not {"logp", "ref_logp"} <= set(names) and {"+", "-"} & set(names):
        plus, minus = names.get("+", f"-{names.get('-')}"), names.get("-", f"-{names.get('+')}")
        square = f"{names.get('+', minus)} ** 2"
        pairs = {"(logp - ref_logp) ** 2": square, "logp - ref_logp": plus, "ref_logp - logp": minus}
        for ours, theirs in pairs.items():
            text = text.replace(ours, theirs)
    if set(re.findall(_OURS, text)) - set(names):
        return None
    return re.sub(_OURS, lambda m: names[m.group()], text).splitlines()


def _replaced(f: RanFunction, x: Any, lines: list[str] | None) -> Change | None:
    """A term in place of an expression, with the lines that it needs in front of the statement."""
    if lines is None:
        return None
    taken = {y.id for y in ast.walk(f.node) if isinstance(y, ast.Name)}
    for name in {"rho", "d", "w", "total"} & taken:
        if any(re.match(rf"(?:\w+, )?{name}\b.* = ", line) for line in lines):
            lines = [re.sub(rf"(?<![\w.]){name}(?!\w)", f"{name}_", line) for line in lines]
    unit, statement = f.unit, f.unit.statement(x)
    first = unit.offset(statement.lineno)
    indent = unit.source[first : unit.offset(statement.lineno, statement.col_offset)]
    *before, last = lines
    term = last.partition(" = ")[2]
    # the names of a comprehension or a lambda are its own, and def f(x): return x has no line in front
    own_line = not indent.strip() and not any(isinstance(y, _LOOPS) for y in unit.around(x))
    edit = _spliced(unit, x, term)
    if own_line and unit.parents[x] is not statement and _too_long(unit, edit):
        name = "kl" if "kl" not in taken else "kl_"
        before, edit = [*before, f"{name} = {term}"], _spliced(unit, x, name)
    if not before:
        return Change((edit,))
    put = unit.inserted(first, textwrap.indent("\n".join(before), indent) + "\n")
    return Change((edit, put)) if own_line else None


def _too_long(unit: Unit, edit: Edit) -> bool:
    start = unit.source.rfind("\n", 0, edit.start) + 1
    line = unit.source[start : edit.start] + edit.text + unit.source[edit.end :].partition("\n")[0]
    return len(line) > _LONG


def _spliced(unit: Unit, x: ast.AST, text: str) -> Edit:
    """Another text for an expression, in brackets where it had none and needs them."""
    start, end = unit.span(x)
    parent = unit.parents[x]
    is_operand = isinstance(parent, _OPERATIONS)
    is_operand |= isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is x
    if text.startswith("(") and ast.parse(text, mode="eval").body.col_offset:
        text = text[1:-1]
    has_brackets = unit.source[start - 1] == "(" and unit.source[end : end + 1] == ")"
    if text.isidentifier():
        if has_brackets and not re.search(r"[\w)\]]$", unit.source[: start - 1]):  # not those of a call
            start, end = start - 1, end + 1
    elif not has_brackets and is_operand:
        text = f"({text})"
    return Edit(unit, start, end, text)


def _ratios(
    program: Program, notes: NotedValues, ours: Sequence[Values], of: RanFunction
) -> Iterator[Change]:
    """Yield calls of a function multiplied by the ratio of policy to sampler, where their caller has both."""
    for f in program.functions:
        by_shape, _ = _names(f, notes, ours)
        named = [n for n in by_shape.values() if {"logp", "behavior_logp"} <= set(n)]
        calls = [x for x in _own(f.node) if isinstance(x, ast.Call) and last_name(x.func) == of.node.name]
        for x in calls if named else ():
            lines = _in_names([_RHO], named[0])
            change = _replaced(f, x, lines and [*lines, f"kl = rho * {f.unit.text(x)}"])
            if change is not None and x in notes:
                yield change
