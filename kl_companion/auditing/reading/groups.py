"""How many answers a loss takes for a group, as its own text says: a parameter, an option, a reshape."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.names import Read, read_name
from kl_companion.auditing.reading.text import FunctionText

MOST = 16  # answers in a group whose draws are enumerated
_DEPTH = 3  # of functions that call each other


class GroupSize(NamedTuple):
    """Answers in a group.

    Attributes:
        size: Their number.
        source: The name or the expression of the loss that holds it.
    """

    size: int
    source: str


def group_size_of(text: FunctionText, values: Mapping[str, Any]) -> GroupSize | None:
    """Return the size of a group that a function is written for; None where its text names none.

    The rows of a batch are put into groups by ``rewards.view(-1, 4)``, ``.reshape(-1, num_generations)``,
    ``.split(n)``, ``.unflatten(0, (-1, n))``, ``range(0, len(rewards), n)``; here, or in a function of the
    same file that it calls. Otherwise a name such as ``num_generations`` counts, where the function reads it.

    Args:
        text: Of the function.
        values: Of parameters and options, by name, where they are known.
    """
    names = list[GroupSize]()
    for size, is_name in _sizes(text.knowing(values), _DEPTH):
        if not is_name:
            return size
        names += [size] if size.size <= MOST else []
    return next(iter(names), None)


def with_group_size(error: Unusable, run: Callable[[int], Any]) -> Unusable:
    """Return the refusal of a loss with the option that makes it run, if there is a size of group that does.

    Args:
        error: What the loss raised on a batch of any size.
        run: Calls the loss on so many answers.
    """
    for size in range(2, 9):
        try:
            run(size)
        except ValueError:
            continue
        return Unusable(f"{error}\n  it runs on {size} answers: --group-size {size}")
    return error


def check_group(group: GroupSize, with_option: Callable[[Mapping[str, Any]], GroupSize | None]) -> None:
    """Raise `Unusable` for groups of which there are too many, with the option that makes them smaller.

    Args:
        group: Of a loss.
        with_option: Returns the group of the same loss with one option more.
    """
    if group.size <= MOST:
        return
    name, line = re.findall(r"\w+", group.source)[-1], ""
    with suppress(ValueError):
        smaller = with_option({name: 4})
        line = f": --set {name}=4" if smaller == group._replace(size=4) else ""
    raise Unusable(
        f"{group.source} makes groups of {group.size} answers, expected at most {MOST}, so that all can be "
        f"enumerated{line}"
    )


def _sizes(text: FunctionText, depth: int) -> Iterator[tuple[GroupSize, bool]]:
    """Yield the sizes that a function's text names, and whether each is only a name."""
    calls = [node for node in text.nodes if isinstance(node, ast.Call)]
    for call in calls:
        if (grouped := _grouped_by(call)) is not None and (size := _size(text, grouped)):
            source = ast.unparse(call if isinstance(grouped, ast.Constant) else grouped)
            yield GroupSize(size, source), False
    for call in calls if depth else ():
        if (helper := text.helper(call)) is None:
            continue
        parameters = inspect.signature(helper).parameters
        passed = dict(zip([n for n in parameters if n != "self"], call.args, strict=False))
        passed |= {k.arg: k.value for k in call.keywords if k.arg}
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        inside = defaults | {n: text.value(x) for n, x in passed.items()}
        for found, is_name in _sizes(FunctionText(helper, text.owner).knowing(inside), depth - 1):
            argument = passed.get(found.source)
            source = f"{found.source} in {helper.__name__}" if argument is None else ast.unparse(argument)
            yield found._replace(source=source), is_name
    for node in text.nodes:
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
            source = ast.unparse(node)
            read = read_name(re.findall(r"\w+", source)[-1])
            if isinstance(read, Read) and read.role == "group_size" and (size := _size(text, node)):
                yield GroupSize(size, source), True


def _size(text: FunctionText, node: ast.expr) -> int:
    size = text.value(node)
    return size if type(size) is int and size >= 2 else 0


def _grouped_by(call: ast.Call) -> ast.expr | None:
    """Return what a call divides the rows of a batch by; None where it does not."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    shape = call.args[-1].elts if call.args and isinstance(call.args[-1], ast.Tuple) else call.args
    if name in ("view", "reshape", "unflatten") and len(shape) == 2:
        rest = shape[0]  # -1, or a number of rows divided by something
        divided = isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.FloorDiv)
        return shape[1] if divided or ast.unparse(rest) == "-1" else None
    place = {"split": 0, "range": 2}.get(name, -1)
    return call.args[place] if len(call.args) == place + 1 > 0 else None
