"""A small book with the real extension and the real settings.

Each of its chapters writes its name to a log when it runs, so that executions are counted where they happen.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nbformat
import yaml

from tests.support.extensions import extension

# as the Makefile builds the book
BUILD = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "-n", "-W", "--keep-going"]
LOG = "import os\nwith open(os.environ['KL_TOY_LOG'], 'a') as log:\n    log.write('{name}\\n')\n"
INIT = '''"""Lazy."""
from typing import TYPE_CHECKING
from kl_companion.lazy import lazy
if TYPE_CHECKING:
    from kl_companion.used import one as one
    from kl_companion.other import two as two
__version__ = "1"
__getattr__, __all__, __dir__ = lazy(__name__)
'''
TABLES = '''"""Read a table."""
from pathlib import Path
def load(name):
    return (Path(__file__).parents[3] / "tables" / name / "table.csv").read_text()
'''


def notebook(*cells: str) -> str:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_markdown_cell("# A chapter")]
    made.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(made)


def make_project(root: Path, project: Path) -> None:
    shutil.copytree(root / "book/_ext", project / "book/_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(root / "book/_static", project / "book/_static")
    for name in extension("kl_wheel").BESIDE:
        shutil.copy(root / name, project / name)
    package, own = project / "kl_companion", project / "book/kl_book"
    package.mkdir()
    (own / "tables").mkdir(parents=True)
    shutil.copy(root / "book/kl_book/tables/closure.py", own / "tables/closure.py")
    shutil.copy(root / "kl_companion/lazy.py", package / "lazy.py")
    (own / "__init__.py").touch()
    (own / "tables/__init__.py").write_text(TABLES)
    (package / "__init__.py").write_text(INIT)
    (package / "used.py").write_text("from . import helper\none = helper.ONE\n")
    (package / "helper.py").write_text("ONE = 1\n")
    (package / "other.py").write_text("two = 2\n")
    for name in ("numbers", "letters"):
        (project / "tables" / name).mkdir(parents=True)
        (project / "tables" / name / "manifest.yml").write_text("title: toy\n")
        (project / "tables" / name / "table.csv").write_text("a\n1\n")
    chapters = {
        "imports": "from kl_companion import one\nprint(one)",
        "loads": "from kl_book import tables\nprint(tables.load('numbers'))",
        "attribute": "import kl_companion as kl\nprint(kl.one, kl.two)",
    }
    for name, code in chapters.items():
        text = notebook("import sys\nsys.path[:0] = ['..', '.']\n" + LOG.format(name=name), code)
        (project / f"book/{name}.ipynb").write_text(text)
    (project / "book/intro.md").write_text("# Intro\n\nA page.\n")
    (project / "book/references.bib").write_text("")
    shutil.copy(root / "_config.yml", project / "_config.yml")
    toc = {"format": "jb-book", "root": "book/intro", "chapters": [{"file": f"book/{n}"} for n in chapters]}
    (project / "_toc.yml").write_text(yaml.safe_dump(toc))


def pages(html: Path) -> dict[str, bytes]:
    """Every page of a built book, without the versions of style sheets.

    Sphinx writes those of the files that are there when it writes the page, and some come at the end of the
    first build.
    """
    found = {path.relative_to(html).as_posix(): path.read_bytes() for path in html.rglob("*.html")}
    return {name: re.sub(rb"\?v=[0-9a-f]+", b"", page) for name, page in found.items()}
