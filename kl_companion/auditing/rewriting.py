"""The remedy as a change of the reader's own function: its names, its mask, its reduction."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.adapt import Reading

# what goes from a remedy for stale samples where the loss is told of fresh ones only: the ratio is 1
_RATIOS = (
    ("w, rho = ", "w = "),
    (", (logp - behavior_logp).exp().detach()", ""),
    (", behavior_logp", ""),
    ("rho * ", ""),
)


class Rewritten(NamedTuple):
    """A function with another body.

    Attributes:
        source: The whole function.
        diff: Its lines: with a minus in front those that go, with a plus those that come.
        function: It, to be audited.
    """

    source: str
    diff: str
    function: Callable[..., Any]


def rewritten(
    function: Any, reading: Reading, body: list[str], *, beta: float, unit: str, sums: bool
) -> Rewritten | None:
    """The reader's function with a body that computes what was wanted; None where that is not one term.

    Args:
        function: A function, or a method taken from its class.
        reading: How it was read.
        body: Lines that compute ``kl`` from logp, ref_logp, behavior_logp and mask.
        beta: The coefficient.
        unit: What the loss divides by, a name of `UNITS`.
        sums: Whether it is a sum over the batch.
    """
    if not {r.name for r in reading.reads} <= _parameters(function):  # keys of a batch
        return None
    names = {r.role: r.name for r in reversed(reading.reads)}
    of_answers = any(".sum(-1)" in line for line in body)
    mask = names.get("completion_mask")
    returned = _returned(reading.result, mask and "mask", beta, unit, sums, of_answers)
    if {"logp", "ref_logp"} - set(names) or "rewards" in names or returned is None:
        return None
    if (
        any(r.endswith(("logits", "probs", "_all", "outputs")) or "topk" in r for r in names)
        or reading.layout.whole
    ):
        return None
    found = _source_of(function)
    if found is None:
        return None
    header, old = found
    if mask is None and any(re.search(r"(?<![\w.])mask(?!\w)", line) for line in body):
        return None
    theirs = names if mask is None else names | {"mask": mask}
    text = _in_their_names([*_of_these_samples(body, names), f"return {returned}"], theirs)
    new = textwrap.indent(text, "    ").splitlines()
    scope: dict[str, Any] = dict(function.__globals__)  # its annotations and defaults name what is there
    try:
        exec("import torch\n" + "\n".join([*header, *new]), scope)
    except SyntaxError:
        return None
    made = scope[function.__name__]
    if next(iter(inspect.signature(made).parameters), "") == "self":
        made = partial(made, None)
    changed = difflib.ndiff(old, new)
    diff = "\n".join([header[-1], *(x for x in changed if x[:2] in ("- ", "+ "))])
    return Rewritten("\n".join([*header, *new]), diff, made)


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) if inspect.isfunction(function) else set()


def _of_these_samples(body: list[str], names: dict[str, str]) -> list[str]:
    """The lines as they are, or without the ratio where the loss is told of fresh samples only: it is 1."""
    if "behavior_logp" in names:
        return body
    kept = [line for line in body if not line.startswith("rho = ")]
    for ratio, instead in _RATIOS:
        kept = [line.replace(ratio, instead) for line in kept]
    return kept


def _in_their_names(body: list[str], names: dict[str, str]) -> str:
    """The lines with what we call the inputs replaced, all at once, by what the reader does."""
    ours = "|".join(n for n in ("ref_logp", "behavior_logp", "logp", "mask") if n in names)
    return re.sub(rf"(?<![\w.])(?:{ours})(?!\w)", lambda m: names[m.group()], "\n".join(body))


def _returned(
    result: str, mask: str | None, beta: float, unit: str, sums: bool, of_answers: bool
) -> str | None:
    """The expression that is returned: per token, per answer, or one number in the reader's own reduction.

    Args:
        result: How the reader's own was found.
        mask: Its name.
        beta: See `rewritten`.
        unit: See `rewritten`.
        sums: See `rewritten`.
        of_answers: Whether ``kl`` is one number per answer, not one per token.
    """
    kl = "kl" if beta == 1 else f"{beta:g} * kl"
    if of_answers:
        each = kl if kl == "kl" else f"({kl})"
        number = f"{each}.sum()" if sums else f"{each}.mean()"
        return (
            {"one value per answer": kl, "one number": number}.get(result.partition(":")[0])
            if unit == ""
            else None
        )
    held = f"{kl} * {mask}" if mask else kl
    bracketed = f"({held})" if held != "kl" else "kl"
    if result.startswith("one value per token:"):
        return kl
    if result.startswith("one value per answer"):
        return f"{bracketed}.sum(-1)"
    if result != "one number":
        return None
    if sums:
        return f"{bracketed}.sum()"
    if unit == "tokens" and mask:
        return f"{bracketed}.sum() / {mask}.sum()"
    return {"": f"{bracketed}.sum(-1).mean()", "positions": f"{bracketed}.mean()"}.get(unit)


def _source_of(function: Any) -> tuple[list[str], list[str]] | None:
    """The lines of a function's head and of its body, without docstring; None where there is no source."""
    found = _parsed(function)
    if found is None:
        return None
    lines, node = found
    first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
    if first.lineno == node.lineno:  # def f(x): return x
        return None
    return lines[node.lineno - 1 : node.body[0].lineno - 1], lines[first.lineno - 1 :]


def repaired(
    function: Any, bound: Callable[..., Any], names: dict[str, str], body: list[str]
) -> Iterator[Rewritten]:
    """The reader's function with one assignment replaced by what was wanted, for each that may be the KL.

    Assignments to names that hold ``kl`` come first. Which of them is right, an audit has to say.

    Args:
        function: A function, or a method taken from its class.
        bound: What is called: the function, or the method of an instance.
        names: What logp, ref_logp and behavior_logp are called inside; see `names_inside`.
        body: Lines that compute ``kl`` from them.
    """
    found = _parsed(function)
    if found is None or {"logp", "ref_logp"} - set(names):
        return
    lines, node = found
    body = _of_these_samples(body, names)
    assigned = [x for x in ast.walk(node) if isinstance(x, ast.Assign) and isinstance(x.targets[0], ast.Name)]
    for statement in sorted(assigned, key=lambda x: ("kl" not in x.targets[0].id.lower(), x.lineno)):  # type: ignore[attr-defined]
        target = statement.targets[0].id  # type: ignore[attr-defined]
        *first_lines, value = (_in_their_names([line], names) for line in body)
        text = "\n".join([*first_lines, re.sub(r"^kl\b", target, value)])
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        new = textwrap.indent(text, " " * statement.col_offset).splitlines()
        source = "\n".join([*lines[:first], *new, *lines[last:]])
        scope = dict(getattr(function, "__globals__", {}))
        try:
            exec(compile(_bare(source), "<changed>", "exec"), scope)
        except SyntaxError:
            continue
        made = scope[function.__name__]
        owner = getattr(bound, "__self__", None)
        diff = "\n".join([*(f"- {x.strip()}" for x in lines[first:last]), *(f"+ {x.strip()}" for x in new)])
        yield Rewritten(source, diff, made if owner is None else partial(made, owner))


def _bare(source: str) -> ast.Module:
    """The function without its decorators."""
    tree = ast.parse(source)
    tree.body[0].decorator_list = []  # type: ignore[attr-defined]
    return tree


def _parsed(function: Any) -> tuple[list[str], ast.FunctionDef] | None:
    """The lines of a function and its tree; None where there is no source, or it closes over something."""
    if not inspect.isfunction(function) or function.__closure__:
        return None
    try:
        source = textwrap.dedent(inspect.getsource(function))
        node = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return (source.splitlines(), node) if isinstance(node, ast.FunctionDef) else None


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
