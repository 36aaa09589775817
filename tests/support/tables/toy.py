"""A toy project with one table: its notebook needs neither torch nor a second of arithmetic."""

import json
from pathlib import Path

from tests.support.data import data

PARAMETERS, WORK, MANIFEST, TABLE = data(__file__).values()


def notebook(*cells: str, tagged: int = 0) -> str:
    """A notebook file with these code cells; the one at `tagged` holds the parameters."""
    content = [
        {
            "cell_type": "code",
            "id": f"cell{number}",
            "metadata": {"tags": ["parameters"]} if number == tagged else {},
            "execution_count": None,
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(cells)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": content, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    )


def write_project(root: Path) -> Path:
    """The files of the toy project; no table is made yet."""
    for folder in ("book/experiments", "tables/toy"):
        (root / folder).mkdir(parents=True)
    (root / "_toc.yml").write_text("root: book/page\n")
    (root / "book/page.md").write_text("```{csv-table}\n:file: ../tables/toy/table.csv\n```\n")
    (root / "book/experiments/toy.ipynb").write_text(notebook(PARAMETERS, WORK))
    (root / "tables/toy/manifest.yml").write_text(MANIFEST)
    return root
