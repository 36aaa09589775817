"""Run the statements of a release that stand under one condition of a long method, and nothing else of it.

The methods that train an actor move batches, call a model and step an optimizer; the KL term is a block of
a few lines in the middle, ``if config.use_kl_loss:``. It is cut out and run with what it reads of the method
stood in for; the functions that it calls are the release's own (see `linking`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from inspect import signature
from typing import Any

from kl_companion.frameworks.installed import (
    Bare,
    Distribution,
    SourceLocation,
    Unavailable,
    tree_of,
)
from kl_companion.frameworks.linking import Linker

Block = Callable[[Mapping[str, Any]], dict[str, Any]]


def block(
    distribution: Distribution, files: Sequence[str], option: str, calls: str
) -> tuple[Block, SourceLocation]:
    """The statements under the condition on an option that call a function.

    Args:
        distribution: The release.
        files: Below its root, in the order of the search; those that it lacks are passed over.
        option: The last part of the name that the condition reads, ``use_kl_loss``.
        calls: The name of a function that the statements call, under whatever module.

    Returns:
        A function from the names that the statements read to all names after them, and where they stand.

    Raises:
        Unavailable: no file has such statements.
    """
    for file in files:
        path = distribution.root / file
        if not path.is_file():
            continue
        for function, node in _conditions(tree_of(path).body):
            if _mentions(node.test, option) and any(_mentions(n, calls) for n in node.body):
                return _compiled(distribution, file, node), SourceLocation(file, function)
    raise Unavailable(
        f"{distribution.name} {distribution.version} has no statements under {option} that call {calls}"
    )


def _conditions(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, ast.If]]:
    """Every condition in the functions of a body, with the dotted name of its function."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _conditions(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.If):
                    yield f"{within}{node.name}", inner


def _mentions(node: ast.AST, name: str) -> bool:
    return any(
        (isinstance(n, ast.Name) and n.id == name) or (isinstance(n, ast.Attribute) and n.attr == name)
        for n in ast.walk(node)
    )


def _compiled(distribution: Distribution, file: str, node: ast.If) -> Block:
    body = [Bare().visit(deepcopy(n)) for n in node.body]
    code = compile(ast.fix_missing_locations(ast.Module(body, [])), str(distribution.root / file), "exec")
    names = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
    linked = Linker(distribution, {}).module(file).known(names)  # others are the method's own

    def run(names: Mapping[str, Any]) -> dict[str, Any]:
        space = {**linked, **names}
        exec(code, space)
        return space

    return run


def call(function: Callable[..., Any], **known: Any) -> Any:
    """Call a function with those of the named arguments that it has: releases add and rename them."""
    accepted = signature(function).parameters
    return function(**{name: value for name, value in known.items() if name in accepted})
