"""A cell of a chapter as it runs in its page: JSON in, JSON out."""

from __future__ import annotations

import ast
import io
import json
import traceback
from contextlib import redirect_stdout
from typing import Any

from kl_book.paste.stand_in.tensor import NotInPage

_FILE = "<cell>"  # of its lines in tracebacks
_ON_A_MACHINE = "does not run in this page. Download the page as a notebook to run it on your machine."


def cell_answer(request: str) -> str:
    """Return what a cell prints, as JSON.

    Args:
        request: JSON of ``code``, the text of the cell, and ``before``, the code that must run before it.
            An import there may fail: the cell's name for it is then one that the page lacks.

    Returns:
        ``printed``, and ``error``, empty where there is none.
    """
    asked = json.loads(request)
    printed, error = io.StringIO(), ""
    space: dict[str, Any] = {"__name__": "__main__"}
    lacking = _prepare(asked["before"], space)
    with redirect_stdout(printed):
        try:
            _run(asked["code"], space)
        except Exception as raised:  # whatever the reader's code raises is the answer
            error = _sentence(raised, lacking)
    return json.dumps({"printed": printed.getvalue(), "error": error})


def _prepare(before: str, space: dict[str, Any]) -> set[str]:
    """Run the code of earlier cells, and return the names that imports did not bring."""
    lacking = set()
    with redirect_stdout(io.StringIO()):
        for node in ast.parse(before).body:
            try:
                _execute(ast.Module([node], []), space, "<earlier cells>")
            except (ImportError, NotInPage):
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    raise
                lacking |= {alias.asname or alias.name for alias in node.names}
    return lacking


def _run(code: str, space: dict[str, Any]) -> None:
    """Run a cell; the value of an expression at its end is printed, as in a notebook."""
    body = ast.parse(code, _FILE).body
    last = [body.pop()] if body and isinstance(body[-1], ast.Expr) else []
    _execute(ast.Module(body, []), space)
    _execute(ast.Interactive([*last]), space)


def _execute(tree: ast.Module | ast.Interactive, space: dict[str, Any], name: str = _FILE) -> None:
    exec(compile(tree, name, "exec" if isinstance(tree, ast.Module) else "single"), space)


def _sentence(error: Exception, lacking: set[str]) -> str:
    if isinstance(error, SyntaxError):
        return f"Line {error.lineno} is not Python: {error.msg}."
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    where = f"Line {lines[-1]}: " if lines else ""
    if isinstance(error, NotInPage):
        return f"{where}{error.lacking} {_ON_A_MACHINE}"
    if isinstance(error, ModuleNotFoundError) or (isinstance(error, NameError) and error.name in lacking):
        return f"{where}{error.name} {_ON_A_MACHINE}"
    return f"{where}{type(error).__name__}: {error}"
