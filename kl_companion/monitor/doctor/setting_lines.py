"""The line of a user's script that gives a setting its value."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kl_companion.monitor.doctor.tracing import Line, outside_libraries

_LARGEST = 400_000  # bytes of a script that is parsed


def setting_line(name: str, value: Any = None) -> Line | None:
    """Return the line of the user's code that sets ``name``: a keyword, a key, an attribute, or a call.

    Args:
        name: Of the setting, or of what is called.
        value: A line with this value goes before one with the value of a variable; one with another number
            is left out. None: any line.
    """
    lines = [(line, x) for file in _files() for line, x in _assigned(file, name)]
    exact = [line for line, x in lines if isinstance(x, ast.expr) and _literal(x) == value]
    others = [line for line, x in lines if value is None or not isinstance(x, ast.Constant)]
    return next(iter([*exact[-1:], *others[-1:]]), None)


def _files() -> Iterator[Path]:
    """The user's files: the script first, then those that are on the stack or beside the script."""
    script = Path(sys.argv[0] if sys.argv else "")
    frame: Any = sys._getframe(1)
    files = [script]
    while frame is not None:
        files.append(Path(frame.f_code.co_filename))
        frame = frame.f_back
    beside = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    files += [Path(x) for x in beside if x and Path(x).parent == script.resolve().parent]
    for file in dict.fromkeys(x.resolve() for x in files if x.suffix == ".py"):
        if file.is_file() and outside_libraries(str(file)) and file.stat().st_size < _LARGEST:
            yield file


def _assigned(file: Path, name: str) -> Iterator[tuple[Line, ast.AST | None]]:
    """Lines that give a name a value, with the value."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == name:
            yield Line(str(file), node.value.lineno), node.value
        elif isinstance(node, ast.Dict):
            for key, x in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield Line(str(file), key.lineno), x
        elif isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(f".{name}"):
            yield Line(str(file), node.lineno), None
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                key = getattr(target, "slice", None)
                if name in ast.unparse(target).split(".")[1:] or getattr(key, "value", None) == name:
                    yield Line(str(file), node.lineno), node.value


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
