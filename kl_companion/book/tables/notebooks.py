"""What the runner reads in a notebook: its code cells and its parameters."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path


def notebook_digest(path: Path) -> str:
    """sha256 of what the code cells of a notebook do.

    Cells are compared as syntax trees: comments and layout do not count, and neither does the module that a
    name of kl_companion is imported from. So the package may be rearranged without making a result stale.
    """
    names: set[str] = set()
    cells = [_canonical(source, names) for source, _ in code_cells(path)]
    return hashlib.sha256(json.dumps([cells, sorted(names)]).encode()).hexdigest()


def _canonical(source: str, names: set[str]) -> str:
    """A cell without its imports from the package, whose names are added to ``names``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with lines for IPython
        return source
    return ast.dump(_WithoutImports(names).visit(tree))


class _WithoutImports(ast.NodeTransformer):
    """Take out the imports from the package; note what they import, and under which name."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        if not node.module or node.module.partition(".")[0] != "kl_companion":
            return node
        self.names |= {f"{alias.name} as {alias.asname or alias.name}" for alias in node.names}
        return None


def notebook_parameters(path: Path) -> dict[str, ast.expr]:
    """The names that a notebook's cell tagged `parameters` assigns, with their defaults.

    Raises:
        ValueError: the notebook has no such cell, or more than one, or it does not parse.
    """
    cells = [source for source, tags in code_cells(path) if "parameters" in tags]
    if len(cells) != 1:
        raise ValueError(f"notebook {path.name} has {len(cells)} cells tagged `parameters`, expected one")
    try:
        body = ast.parse(cells[0]).body
    except SyntaxError as error:
        raise ValueError(f"notebook {path.name}: the parameters do not parse: {error}") from None
    found: dict[str, ast.expr] = {}
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        found |= {t.id: value for t in targets if isinstance(t, ast.Name) and isinstance(value, ast.expr)}
    return found


def code_cells(path: Path) -> list[tuple[str, list[str]]]:
    """The code cells of a notebook: source and tags.

    Raises:
        ValueError: the file is no notebook of format 4.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return [("".join(cell["source"]), cell.get("metadata", {}).get("tags", [])) for cell in code]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a notebook of format 4: {error!r}") from None
