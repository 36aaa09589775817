"""Small changes of a reader's functions that may mend a loss: the shortest first. An audit says which do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kl_companion.auditing.repair.programs import Edit, NotedValues, Program, RanFunction, Unit

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
        function: Where a term was put in.
    """

    edits: tuple[Edit, ...] = ()
    why: str = ""
    freed: tuple[RanFunction, ...] = ()
    options: Mapping[str, Any] = MappingProxyType({})
    of_value: bool = True
    function: RanFunction | None = None

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
        others = families.get(name.rpartition(".")[2], []) if isinstance(value, str) else []
        others = [x for x in others if x != value]
        for other in [not value] if isinstance(value, bool) else others:
            shown = f"--set {name}={other}"
            why = f"{shown} is enough: your code has that branch, and with it the loss passes the audit"
            yield Change(why=why, options={name: other})
    for unit, node in _nodes(program, ast.Call):
        function = next((f.node for f in program.functions if f.node.name == last_name(node.func)), None)
        for name, value, edit in _texts_passed(unit, node, function) if function else ():
            for other in dict.fromkeys(families.get(name, ())):
                if other != value:
                    yield Change((edit._replace(text=edit.text.format(other)),))


def _texts_passed(unit: Unit, call: ast.Call, function: Any) -> Iterator[tuple[str, str, Edit]]:
    """Yield the texts that a call passes, or leaves at their default: name, value and edit with ``{}``."""
    names = [a.arg for a in function.args.args]
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    passed = dict(zip(names[names[:1] in (["self"], ["cls"]) :], call.args, strict=False))
    passed |= {k.arg: k.value for k in call.keywords if k.arg}
    for name, value in {**defaults, **passed}.items():
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            continue
        if name in passed:
            quote = unit.text(value)[-1]
            yield name, value.value, Edit(unit, *unit.span(value), f"{quote}{{}}{quote}")
        else:
            end = unit.span(call)[1] - 1
            yield name, value.value, Edit(unit, end, end, f', {name}="{{}}"')


def _families(program: Program) -> dict[str, list[str]]:
    """Texts that each name is compared with, or looked up by."""
    found: dict[str, list[str]] = {}
    others: Sequence[ast.AST]
    for _, node in _nodes(program, ast.Compare | ast.Subscript | ast.Match):
        if isinstance(node, ast.Match):
            name, others = last_name(node.subject), [case.pattern for case in node.cases]
        elif isinstance(node, ast.Compare):
            name, others = last_name(node.left), node.comparators
        else:
            name, others = last_name(node.slice), getattr(node.value, "keys", [])
        texts = [x.value for y in others for x in ast.walk(y) if isinstance(x, ast.Constant)]
        found.setdefault(name, []).extend(x for x in texts if isinstance(x, str))
    return found


def last_name(x: ast.AST) -> str:
    """Return the last part of a dotted name; "" of what is none."""
    return x.id if isinstance(x, ast.Name) else x.attr if isinstance(x, ast.Attribute) else ""


def _nodes(program: Program, kind: Any) -> list[tuple[Unit, Any]]:
    """Nodes of a kind in all functions that ran, each once, with their unit."""
    found = {}
    for f in program.functions:
        found.update({x: f.unit for x in ast.walk(f.node) if isinstance(x, kind)})
    return [(unit, node) for node, unit in found.items()]


def signs(program: Program) -> Iterator[Change]:
    """Yield other signs of sums, the last lines first, and signs where there are none."""
    nodes = _nodes(program, ast.BinOp | ast.AugAssign | ast.UnaryOp)
    for unit, x in sorted(nodes, key=lambda pair: -pair[1].lineno):
        if isinstance(x, ast.UnaryOp):
            start, end = unit.offset(x.lineno, x.col_offset), unit.span(x.operand)[0]
            if isinstance(x.op, ast.USub) and unit.source[start:end].strip() == "-":
                yield Change((Edit(unit, start, end, ""),), "A sign was wrong.")
            continue
        left, right = (x.target, x.value) if isinstance(x, ast.AugAssign) else (x.left, x.right)
        between = unit.span(left)[1]
        sign = re.search(r"[-+]", unit.source[between : unit.span(right)[0]])
        if isinstance(x.op, ast.Add | ast.Sub) and sign:
            at = between + sign.start()
            other = "+" if sign.group() == "-" else "-"
            yield Change((Edit(unit, at, at + 1, other),), "A sign was wrong.")
    for unit, x in _nodes(program, ast.BinOp | ast.Assign):
        first = x.value if isinstance(x, ast.Assign) else x.left if isinstance(x.op, ast.Add) else None
        if isinstance(first, ast.Call | ast.Name):
            at = unit.span(first)[0]
            yield Change((Edit(unit, at, at, "-"),), "A sign was missing.")


def exchanged(program: Program) -> Iterator[Change]:
    """Yield calls of ``kl_div`` with their arguments exchanged, and with ``log_target``."""
    why = "kl_div(a, b) is the KL from b to a, and reads b as log-probs with log_target=True only."
    for unit, x in _nodes(program, ast.Call):
        if last_name(x.func) != "kl_div" or len(x.args) < 2:
            continue
        a, b = x.args[:2]
        log_target = next((k for k in x.keywords if k.arg == "log_target"), None)
        first, second = unit.text(a), unit.text(b)
        flag: tuple[Edit, ...] = ()
        if log_target is None:
            at = unit.span(([*x.args, *(k.value for k in x.keywords)])[-1])[1]
            flag = (Edit(unit, at, at, ", log_target=True"),)

        def swapped(p: str, q: str, a: Any = a, b: Any = b, unit: Unit = unit) -> tuple[Edit, Edit]:
            return Edit(unit, *unit.span(a), p), Edit(unit, *unit.span(b), q)

        yield Change(swapped(second, first), why)
        yield Change((*swapped(second, first), *flag), why)
        yield Change(flag, why)
        inner = second.removesuffix(".exp()") if second.endswith(".exp()") else f"{_bare(unit, b)}.log()"
        yield Change(swapped(inner, f"{_bare(unit, a)}.exp()"), why)


def _bare(unit: Unit, x: ast.AST) -> str:
    """The text of an expression, in brackets where a method of it is to be called."""
    bare = isinstance(x, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    return unit.text(x) if bare else f"({unit.text(x)})"


def causes(program: Program, notes: NotedValues) -> Iterator[Change]:
    """Yield what takes a gradient away, taken away: decorators, ``with`` blocks, detached values."""
    scopes = [*_decorators(program), *_blocks(program)]
    yield from scopes
    if len(scopes) > 1:
        yield _together(scopes)
    groups: dict[tuple[Unit, str], list[Change]] = {}
    for unit, x in _nodes(program, ast.Call | ast.Attribute):
        inner = _blocked(x)
        called = isinstance(x, ast.Attribute) and isinstance(unit.parents.get(x), ast.Call)
        if inner is None or called or notes.values.get(inner) is None:
            continue
        whole = unit.text(x)
        edit = Edit(unit, *unit.span(x), _bare(unit, inner))
        groups.setdefault((unit, whole), []).append(Change((edit,), f"{whole} has no gradient."))
    single = [_together(group) for group in groups.values()]
    yield from single
    for other in single:
        for scope in scopes:
            if (both := scope.beside(other)) is not None:
                yield both
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
        if not lines or not f.wrappers:
            continue
        texts = ", ".join(f"@{f.unit.text(x)}" for x in lines)
        edits = tuple(_without_line(f.unit, x.lineno, x.end_lineno) for x in lines)
        yield Change(edits, f"{texts} on {f.node.name} takes its gradient away.", (f,))


def _without_line(unit: Unit, first: int, last: int) -> Edit:
    return Edit(unit, unit.offset(first, 0), unit.offset(last + 1, 0), "")


def _blocks(program: Program) -> Iterator[Change]:
    """Yield ``with torch.no_grad():`` left out, and what was in it one step to the left."""
    for unit, x in _nodes(program, ast.With):
        blocking = [i for i in x.items if re.fullmatch(_NO_GRADIENT, unit.text(i.context_expr))]
        if not blocking:
            continue
        why = f"with {unit.text(blocking[0].context_expr)} takes gradients away."
        if len(x.items) > 1:
            left = ", ".join(
                unit.source[unit.span(i.context_expr)[0] : unit.span(i.optional_vars or i.context_expr)[1]]
                for i in x.items
                if i not in blocking
            )
            start, end = unit.span(x.items[0].context_expr)[0], unit.span(x.items[-1].context_expr)[1]
            yield Change((Edit(unit, start, end, left),), why)
        elif x.body[0].lineno > x.lineno:
            width = x.body[0].col_offset - x.col_offset
            edits = [_without_line(unit, x.lineno, x.body[0].lineno - 1)]
            for line in range(x.body[0].lineno, x.end_lineno + 1):
                start = unit.offset(line, 0)
                if unit.source[start : start + width].isspace() and unit.source[start] != "\n":
                    edits.append(Edit(unit, start, start + width, ""))
            yield Change(tuple(edits), why)


def _blocked(x: Any) -> Any:
    """What an expression has the value of without its gradient; None for others."""
    if isinstance(x, ast.Attribute):
        return x.value if x.attr == "data" else None
    if isinstance(x.func, ast.Attribute) and x.func.attr in _DETACHING and not x.args:
        return x.func.value
    return x.args[0] if last_name(x.func) in _COPYING and len(x.args) == 1 else None
