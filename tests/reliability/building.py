"""Builds of a toy book, to be killed: the first one, and one after a table was edited."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.reliability.killing import ROOT, Work, repeat
from tests.support.toy_book import BUILD, make_project, pages

TABLE = "tables/numbers/table.csv"


class Book(Work):
    """`jupyter-book build` of the toy book as the Makefile calls it."""

    in_place = True

    def __init__(self, base: Path, *, built: bool) -> None:
        self.what = "book build after an edit of a table" if built else "first book build"
        self.before = base / "built" if built else None

    def prepare(self, folder: Path) -> None:
        project = folder / "project"
        if self.before is None:
            make_project(ROOT, project)
            return
        if not self.before.is_dir():  # built under the path that all copies have: Sphinx notes it
            make_project(ROOT, project)
            first = repeat(self, folder)
            if first.status != 0:
                raise RuntimeError(f"the book is not even built undisturbed: {first.said[-3000:]}")
            shutil.copytree(project, self.before)
        shutil.rmtree(project)
        shutil.copytree(self.before, project)
        (project / TABLE).write_text("a\n2\n")

    def command(self, folder: Path) -> list[str]:
        return BUILD

    def variables(self, folder: Path) -> dict[str, str]:
        return {"KL_TOY_LOG": str(folder / "project/log"), "REPOSITORY": ""}

    def result(self, folder: Path) -> dict[str, bytes]:
        """The pages, their pictures, and what the search reads."""
        html = folder / "project/_build/html"
        paths = [*html.glob("_images/*"), *html.glob("searchindex.js")]
        return pages(html) | {path.relative_to(html).as_posix(): path.read_bytes() for path in paths}

    def finished(self, folder: Path) -> set[str]:
        """The chapters whose executed copies are whole, as their sources are now."""
        found = set()
        for path in (folder / "project/_build/.jupyter_cache").glob("executed/*/base.ipynb"):
            try:
                cells = json.loads(path.read_text())["cells"]
            except ValueError:
                continue
            code = "".join("".join(cell["source"]) for cell in cells)
            found |= set(re.findall(r"log\.write\('(\w+)\\n'\)", code))
        # the copy from before the edit of the table says nothing about the chapter that loads it
        return found - {"loads"} if self.before is not None else found

    def files(self, folder: Path) -> set[str]:
        """The pages; what Sphinx keeps for itself is not looked at."""
        return set(self.result(folder))
