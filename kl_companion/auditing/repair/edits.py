"""Small changes of a reader's functions that may mend a loss: the shortest first. An audit says which do."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from kl_companion.auditing.repair.programs import Edit, NotedValues, Program, RanFunction, Unit

WORDS: dict[str, Any] = tomllib.loads((files(__package__) / "words.toml").read_text("utf-8"))
_NO_GRADIENT = r"(?:torch\.)?(?:(?:no_grad|inference_mode)(?:\(\)|\(True\))?|set_grad_enabled\(False\))"
_DETACHING = ("detach", "item", "detach_", "tolist")
_COPYING = ("tensor", "as_tensor", "float", "stop_gradient")


class Change(NamedTuple):
    """A change of the reader's functions or options.

    Attributes:
        edits: Of their text.
        why: A sentence on what it mends, or "".
        freed: Functions whose decorators of torch come off.
        options: Those that are set.
        of_value: Whether the value of the KL term is to stay what it was, or the gradient alone tells.
    """

    edits: tuple[Edit, ...] = ()
    why: str = ""
    freed: tuple[RanFunction, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    of_value: bool = True

    def beside(self, other: Change) -> Change | None:
        """Return both changes as one; None where they are of the same text."""
        edits = []
        for b in other.edits:
            here = [a for a in self.edits if a.unit is b.unit]
            if any(a.start < b.end and b.start < a.end for a in here):
                return None
            # lines that are put in front of one that moves to the left move with it
            left = next((a.end - a.start for a in here if a.start == b.start == b.end), 0)
            edits.append(b._replace(text="".join(x[left:] for x in b.text.splitlines(keepends=True))))
        return other._replace(
            edits=(*self.edits, *edits),
            why=" ".join(filter(None, (self.why, other.why))),
            freed=(*self.freed, *other.freed),
        )


def choices(program: Program, known: Mapping[str, Any]) -> Iterator[Change]:
    """Yield other values of options that the code compares with: ``kl_type="k2"``.

    Args:
        program: The functions that ran.
        known: Options that can be set, with the values that they have.
    """
    families = _families(program)
    for name, value in known.items():
        texts = families.get(name.rpartition(".")[2], ()) if isinstance(value, str) else ()
        for other in [not value] if isinstance(value, bool) else texts:
            if other != value:
                yield Change(why=WORDS["branch"].format(name=name, other=other), options={name: other})
    functions = {f.node.name: f.node for f in reversed(program.functions)}
    for unit, node in nodes_of(program, ast.Call):
        passed = _texts_passed(unit, node, functions.get(last_name(node.func)))
        for name, value, edit in passed:
            others = (x for x in dict.fromkeys(families.get(name, ())) if x != value)
            yield from (Change((edit._replace(text=edit.text.format(x)),)) for x in others)


def _texts_passed(unit: Unit, call: ast.Call, function: Any) -> Iterator[tuple[str, str, Edit]]:
    """Yield the texts that a call passes, or leaves at their default: name, value and edit with ``{}``."""
    names = [a.arg for a in function.args.args] if function else []
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False)) if function else {}
    passed = dict(zip(names[names[:1] in (["self"], ["cls"]) :], call.args, strict=False))
    passed |= {k.arg: k.value for k in call.keywords if k.arg and function}
    for name, value in {**defaults, **passed}.items():
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            continue
        if name in passed:
            quote = unit.text(value)[-1]
            yield name, value.value, unit.replaced(value, f"{quote}{{}}{quote}")
        else:
            yield name, value.value, unit.inserted(unit.span(call)[1] - 1, f', {name}="{{}}"')


def _families(program: Program) -> dict[str, list[str]]:
    """Texts that each name is compared with, or looked up by."""
    found: dict[str, list[str]] = {}
    for _, node in nodes_of(program, ast.Compare | ast.Subscript | ast.Match):
        asked, others = {
            ast.Match: lambda x: (x.subject, [case.pattern for case in x.cases]),
            ast.Compare: lambda x: (x.left, x.comparators),
            ast.Subscript: lambda x: (x.slice, getattr(x.value, "keys", [])),
        }[type(node)](node)
        texts = [x.value for y in others for x in ast.walk(y) if isinstance(x, ast.Constant)]
        found.setdefault(last_name(asked), []).extend(x for x in texts if isinstance(x, str))
    return found


def last_name(x: ast.AST) -> str:
    """Return the last part of a dotted name; "" of what is none."""
    return x.id if isinstance(x, ast.Name) else x.attr if isinstance(x, ast.Attribute) else ""


def nodes_of(program: Program, kind: Any) -> list[tuple[Unit, Any]]:
    """Return the nodes of a kind in all functions that ran, each once, with their unit."""
    found = {x: f.unit for f in program.functions for x in ast.walk(f.node) if isinstance(x, kind)}
    return [(unit, node) for node, unit in found.items()]


def signs(program: Program) -> Iterator[Change]:
    """Yield other signs of sums, the last lines first, and signs where there are none."""
    found = nodes_of(program, ast.BinOp | ast.AugAssign | ast.UnaryOp)
    for unit, x in sorted(found, key=lambda pair: -pair[1].lineno):
        if isinstance(x, ast.UnaryOp):
            start, end, other = unit.span(x)[0], unit.span(x.operand)[0], {"-": ""}
        else:
            left, right = (x.target, x.value) if isinstance(x, ast.AugAssign) else (x.left, x.right)
            start, end, other = unit.span(left)[1], unit.span(right)[0], {"-": "+", "+": "-"}
        between = unit.source[start:end]
        sign = re.search(r"^-(?=\s*$)" if isinstance(x, ast.UnaryOp) else r"[-+]", between)
        if isinstance(x.op, ast.Add | ast.Sub | ast.USub) and sign:
            edit = Edit(unit, start + sign.start(), start + sign.end(), other[sign.group()])
            yield Change((edit,), "A sign was wrong.")
    for unit, x in nodes_of(program, ast.BinOp | ast.Assign):
        first = x.value if isinstance(x, ast.Assign) else x.left if isinstance(x.op, ast.Add) else None
        if isinstance(first, ast.Call | ast.Name):
            yield Change((unit.inserted(unit.span(first)[0], "-"),), "A sign was missing.")


def exchanged(program: Program) -> Iterator[Change]:
    """Yield calls of ``kl_div`` with their arguments exchanged, and with ``log_target``."""
    for unit, x in nodes_of(program, ast.Call):
        if last_name(x.func) != "kl_div" or len(x.args) < 2:
            continue
        a, b = x.args[:2]
        first, second = unit.text(a), unit.text(b)
        last = [*x.args, *(k.value for k in x.keywords)][-1]
        has_flag = any(k.arg == "log_target" for k in x.keywords)
        flag = () if has_flag else (unit.inserted(unit.span(last)[1], ", log_target=True"),)
        swapped = unit.replaced(a, second), unit.replaced(b, first)
        inner = second.removesuffix(".exp()") if second.endswith(".exp()") else f"{_bare(unit, b)}.log()"
        converted = unit.replaced(a, inner), unit.replaced(b, f"{_bare(unit, a)}.exp()")
        for edits in (swapped, (*swapped, *flag), flag, converted):
            yield Change(edits, WORDS["kl_div"])


def _bare(unit: Unit, x: ast.AST) -> str:
    """The text of an expression, in brackets where a method of it is to be called."""
    bare = isinstance(x, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    return unit.text(x) if bare else f"({unit.text(x)})"


def causes(program: Program, notes: NotedValues) -> Iterator[Change]:
    """Yield what takes a gradient away, taken away: decorators, ``with`` blocks, detached values."""
    scopes = [*_decorators(program), *_blocks(program)]
    groups: dict[tuple[Unit, str], list[Change]] = {}
    for unit, x in nodes_of(program, ast.Call | ast.Attribute):
        inner, text = _blocked(x), unit.text(x)
        called = isinstance(x, ast.Attribute) and isinstance(unit.parents.get(x), ast.Call)
        if inner in notes and not called:
            change = Change((unit.replaced(x, _bare(unit, inner)),), f"{text} has no gradient.")
            groups.setdefault((unit, text), []).append(change)
    single = [_together(group) for group in groups.values()]
    yield from scopes
    if len(scopes) > 1:
        yield _together(scopes)
    yield from single
    yield from filter(None, (scope.beside(other) for other in single for scope in scopes))
    if len(single) > 1:
        yield _together(single)


def _together(changes: Sequence[Change]) -> Change:
    whole = changes[0]
    for change in changes[1:]:
        whole = whole.beside(change) or whole
    return whole._replace(why=" ".join(dict.fromkeys(c.why for c in changes)))


def _decorators(program: Program) -> Iterator[Change]:
    for f in program.functions:
        lines = [x for x in f.node.decorator_list if re.fullmatch(_NO_GRADIENT, f.unit.text(x))]
        texts = ", ".join(f"@{f.unit.text(x)}" for x in lines)
        spans = [(f.unit.offset(x.lineno), f.unit.offset(x.end_lineno + 1)) for x in lines]
        if lines and f.wrappers:
            edits = tuple(Edit(f.unit, *span, "") for span in spans)
            yield Change(edits, f"{texts} on {f.node.name} takes its gradient away.", (f,))


def _blocks(program: Program) -> Iterator[Change]:
    """Yield ``with torch.no_grad():`` left out, and what was in it one step to the left."""
    for unit, x in nodes_of(program, ast.With):
        texts = [unit.text(i.context_expr) for i in x.items]
        blocking = [text for text in texts if re.fullmatch(_NO_GRADIENT, text)]
        if not blocking:
            continue
        edits = []
        if len(x.items) > 1:
            ends = [unit.span(i.optional_vars or i.context_expr)[1] for i in x.items]
            starts = [unit.span(i.context_expr)[0] for i in x.items]
            left = [
                unit.source[a:b] for a, b, t in zip(starts, ends, texts, strict=True) if t not in blocking
            ]
            edits.append(Edit(unit, starts[0], ends[-1], ", ".join(left)))
        elif x.body[0].lineno > x.lineno:
            header = unit.source.index(":", unit.span(x.items[0].optional_vars or x.items[0].context_expr)[1])
            body = unit.source.index("\n", header) + 1
            edits.append(Edit(unit, unit.offset(x.lineno), body, ""))
            for line in range(unit.source.count("\n", 0, body) + 1, x.end_lineno + 1):
                start = unit.offset(line)
                indent = unit.source[start : start + x.body[0].col_offset - x.col_offset]
                if indent.isspace() and "\n" not in indent:
                    edits.append(Edit(unit, start, start + len(indent), ""))
        if edits:
            yield Change(tuple(edits), f"with {blocking[0]} takes gradients away.")


def _blocked(x: Any) -> Any:
    """What an expression has the value of without its gradient; None for others."""
    if isinstance(x, ast.Attribute):
        return x.value if x.attr == "data" else None
    if isinstance(x.func, ast.Attribute) and x.func.attr in _DETACHING and not x.args:
        return x.func.value
    return x.args[0] if last_name(x.func) in _COPYING and len(x.args) == 1 else None
