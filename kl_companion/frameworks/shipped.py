"""A loss as a release ships it, and its defaults: of a configuration class or a parser, not imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kl_companion.checks import unknown_name
from kl_companion.frameworks.installed import Distribution, SourceLocation, source_of, statement, tree_of

NEEDED = "a value that the user has to give"
Loss = Callable[..., torch.Tensor]


class Shipped(NamedTuple):
    """A loss as one release has it.

    Attributes:
        loss: A function of a rollout: the regularizer alone, with coefficient 1. Where the release's function
            has the policy loss too, it takes ``advantages`` [batch, seq] and is that alone.
        option: What a user of this release writes for it; the defaults where nothing was chosen.
        beta: The coefficient that the release ships; 0 where the term is off until an option turns it on,
            None where it has no coefficient of its own.
        place: The file and the function that were loaded.
        sampled: Whether only the log-probs of the sampled tokens are read.
    """

    loss: Loss
    option: str
    beta: float | None
    place: SourceLocation
    sampled: bool = True


def class_defaults(distribution: Distribution, file: str, name: str, *bases: str) -> dict[str, Any]:
    """The fields of a dataclass with their defaults; those of base classes in the same file are named.

    Args:
        distribution: The release.
        file: Below its root.
        name: The class.
        *bases: Classes of the file whose fields it inherits, nearest first.

    Returns:
        Literal defaults; `NEEDED` for a field without one, and the text of what is no literal.

    Raises:
        Unavailable: the file, or the class, is missing.
    """
    found: dict[str, Any] = {}
    for each in (*reversed(bases), name):
        node = statement(distribution, file, each)
        assert isinstance(node, ast.ClassDef)
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = _default(field.value)
    return found


def _default(value: ast.expr | None) -> Any:
    if value is None:
        return NEEDED
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("field", "Field"):
        given = {k.arg: k.value for k in value.keywords}
        if "default" in given:
            return _default(given["default"])
        if value.args:  # pydantic's Field has its default first
            return _default(value.args[0])
        if "default_factory" not in given:
            return NEEDED
        return {"list": [], "dict": {}}.get(ast.unparse(given["default_factory"]), ast.unparse(value))
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)


def argument_defaults(distribution: Distribution, file: str) -> dict[str, Any]:
    """The options of an `argparse` parser that a file builds, with their defaults; ``--a.b`` is ``a.b``."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree_of(source_of(distribution, file))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument") and node.args:
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            given = {k.arg: k.value for k in node.keywords}
            if not names or not str(names[0]).startswith("--"):
                continue
            flag = "action" in given and "store_true" in ast.unparse(given["action"])
            default = _default(given["default"]) if "default" in given else (False if flag else None)
            found[str(names[0]).removeprefix("--")] = default
    return found


def chosen(defaults: Mapping[str, Any], options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Defaults with a reader's options in their place; ValueError for an option that the release has not."""
    for name in options:
        if name not in defaults:
            raise unknown_name(f"option of {where}", name, list(defaults))
    return {**defaults, **options}


def written(name: str, config: Mapping[str, Any], shown: Sequence[str], options: Mapping[str, Any]) -> str:
    """A configuration as a user writes it, ``Name(field=value)``: what matters, and what was chosen."""
    fields = [n for n in dict.fromkeys((*shown, *options)) if n in config]
    return f"{name}({', '.join(f'{n}={config[n]!r}' for n in fields)})"
