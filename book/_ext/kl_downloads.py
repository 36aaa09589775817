"""Downloadable notebooks say what they need: their first cell is computed from their imports."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import kl_cache
import kl_wheel

from kl_companion.files import write_atomically

CELL = "what-this-notebook-needs"
# what a notebook imports, by the beginning of its name, and the extra of the package which that needs
EXTRAS = {
    "kl_companion.plotting": "plots",
    "kl_companion.llm": "llm",
    "kl_book.lab": "llm",
    "kl_companion.frameworks.trl_": "trl",
}
OF_SOURCES = ("kl_book", "tests")  # in a copy of the sources and in no wheel


def imported(notebook: str) -> set[str]:
    """Return the full names of modules that the code of a notebook imports.

    Args:
        notebook: The text of the file.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(kl_cache.closure().notebook_code(notebook))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def needs(names: set[str], page: str, wheel: str, repository: str) -> str:
    """Say in Markdown what a notebook needs.

    Args:
        names: What it imports.
        page: Its path in the sources, without suffix.
        wheel: The file name of the wheel.
        repository: The address of the sources, or an empty text where none is known.
    """
    packages = {name.partition(".")[0] for name in names}
    extras = ",".join(sorted({e for start, e in EXTRAS.items() if any(n.startswith(start) for n in names)}))
    brackets = f"[{extras}]" if extras else ""
    own = [f"`{name}`" for name in OF_SOURCES if name in packages]
    if own:
        install = f"pip install -e {_quoted('.', brackets)} -e book"
        sentence = (
            f"It imports {' and '.join(own)} from the sources of the book, so it runs in a copy of them, as "
            f"`{page}.ipynb`. There run `{install}`, or use the environment of `environment.yml`."
        )
        clone = f"git clone --depth 1 {repository} book-sources"
        colab = f"In Colab, run `!{clone}`, then `%cd book-sources` and `%{install}`."
    elif "kl_companion" in packages:
        sentence = (
            "It imports `kl_companion`. The site of the book has that package as the file "
            f"`{kl_wheel.FOLDER}/{wheel}`. Download it, and run `pip install {_quoted(wheel, brackets)}` in "
            "its folder; the site's page *Using the package* shows the command with the file's address."
        )
        colab = f"In Colab, run `%pip install 'kl-companion{brackets} @ git+{repository}'`."
    else:
        return ""
    return f"**What this notebook needs.** {sentence}" + (f" {colab}" if repository else "")


def _quoted(path: str, brackets: str) -> str:
    return f"'{path}{brackets}'" if brackets else path


def with_cell(notebook: str, text: str) -> str:
    """Return a notebook whose first cell is a text.

    Args:
        notebook: The text of the file.
        text: Markdown; where it is empty, the notebook stays as it is.
    """
    if not text:
        return notebook
    content = json.loads(notebook)
    cell = {"cell_type": "markdown", "metadata": {}, "source": [text], "id": CELL}
    content["cells"].insert(0, cell)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def finish(app: Any, exception: Exception | None) -> None:
    """Write the cell into the copies that the pages offer for download, from the sources of each."""
    if exception is not None or app.builder.format != "html":
        return
    options = app.config.html_theme_options
    # Jupyter Book sets an address of its own, without a button, where none was named
    repository = options["repository_url"] if options.get("use_repository_button") else ""
    for page in sorted(app.env.found_docs):
        source = Path(app.env.doc2path(page))
        target = Path(app.outdir) / "_sources" / f"{page}.ipynb"
        if source.suffix != ".ipynb" or not target.is_file():
            continue
        notebook = source.read_text(encoding="utf-8")
        text = with_cell(notebook, needs(imported(notebook), page, app.env.kl_wheel, repository))
        if text != target.read_text(encoding="utf-8"):
            write_atomically(target, text)
