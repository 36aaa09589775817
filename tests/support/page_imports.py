"""What pages import from the packages."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from kl_book.tables.closure import notebook_code

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kl_companion", "kl_book")
PAGES = sorted([*(ROOT / "book").rglob("*.md"), *(ROOT / "book").rglob("*.ipynb"), ROOT / "README.md"])
PAGES = [path for path in PAGES if "_build" not in path.parts]


def code_of(path: Path) -> str:
    """The Python of a page: the cells of a notebook, the blocks of Markdown that import from the package."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return notebook_code(text)
    return "\n".join(re.findall(r"^```(?:python|\{code-block\} python)\n(.*?)^```", text, re.S | re.M))


@cache
def imported() -> dict[tuple[str, str], list[str]]:
    """(module, name) of every import from the package on a page, and the pages that import it."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in PAGES:
        for node in ast.walk(ast.parse(code_of(path))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
                for alias in node.names:
                    page = path.relative_to(ROOT).as_posix()
                    found.setdefault((str(node.module), alias.name), []).append(page)
    return found
