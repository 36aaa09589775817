"""The sources of the book: in the form that every tool reads, complete, and asserting what they say."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chapters import code_cells, run_with_shuffled_tables, tables_loaded
from tests.support.warm import command

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.rglob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.parent.name != "experiments"]
MAY_IMPORT = {
    "kl_companion",
    "kl_book",
    "torch",
    "sympy",
    "numpy",
    "pandas",
    "math",
    "fractions",
    "itertools",
}
MAY_IMPORT |= {"os", "pathlib", "tempfile", "nbformat", "nbclient"}  # "Extending the package" runs a chapter
MAY_IMPORT |= {"subprocess", "sys", "json"}  # two experiments start programs and read what they write
MAY_IMPORT |= {"contextlib", "inspect"}  # what a command says to stderr is shown; a loss's source is printed
MAY_IMPORT |= {"html", "re"}  # words of the package are set in a table
MAY_IMPORT |= {"tests"}  # the cases of bad input
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)


def toc_files() -> list[str]:
    """Files of the table of contents, in order, without suffixes."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *(c["file"] for top in chapters for c in (top, *top.get("sections", [])))]


def notebook(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def test_there_are_chapters() -> None:
    assert len(CHAPTERS) >= 1


def test_the_table_of_contents_and_the_files_agree() -> None:
    listed = toc_files()
    assert len(set(listed)) == len(listed)
    pages = [p for p in BOOK.rglob("*") if p.suffix in (".md", ".ipynb") and "_ext" not in p.parts]
    existing = sorted(p.relative_to(ROOT).with_suffix("").as_posix() for p in pages)
    assert sorted(listed) == existing


@every_notebook
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in notebook(path)["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    ids = [cell["id"] for cell in notebook(path)["cells"]]
    assert len(set(ids)) == len(ids)


@every_notebook
def test_a_notebook_has_one_parameters_cell(path: Path) -> None:
    tags = [cell["metadata"].get("tags", []) for cell in notebook(path)["cells"]]
    assert sum("parameters" in t for t in tags) == 1


@every_notebook
def test_a_notebook_begins_with_its_title(path: Path) -> None:
    first = notebook(path)["cells"][0]
    assert first["cell_type"] == "markdown"
    assert re.match(r"\s*(\([\w-]+\)=\n+)?# \S", "".join(first["source"]))


@every_chapter
def test_a_chapter_ends_in_asserts_on_what_it_computed(path: Path) -> None:
    *earlier, last = [ast.parse(code) for code in code_cells(path)]
    asserts = [node for node in ast.walk(last) if isinstance(node, ast.Assert)]
    assert asserts, "the last code cell asserts nothing"
    computed = {
        node.id
        for cell in earlier
        for statement in ast.walk(cell)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and not isinstance(statement.value, ast.Constant)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    in_last = {n.id: s for s in last.body if isinstance(s, ast.Assign) for n in ast.walk(s) if stored(n)}
    for statement in asserts:
        used = names(statement.test)
        used |= {name for local in used & set(in_last) for name in names(in_last[local])}
        loops = [node for node in ast.walk(last) if isinstance(node, ast.For) and statement in ast.walk(node)]
        used |= {name for loop in loops for name in names(loop.iter)}
        assert used & computed, f"`{ast.unparse(statement)}` uses nothing that was computed above"


def stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


@every_notebook
def test_a_notebook_imports_the_package_and_little_else(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse("\n\n".join(code_cells(path)))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            imported.add((node.module or "").split(".")[0])
    assert imported <= MAY_IMPORT


@every_notebook
def test_a_notebook_defines_no_long_function(path: Path) -> None:
    for node in ast.walk(ast.parse("\n\n".join(code_cells(path)))):
        assert not isinstance(node, ast.ClassDef), node
        if isinstance(node, ast.FunctionDef):
            length = len(ast.unparse(node).splitlines())  # a statement is a line, however it is wrapped
            assert length <= 10, f"{node.name} has {length} lines: it belongs in the package"


def test_every_citation_is_in_the_bibliography() -> None:
    known = set(re.findall(r"^@\w+\{([^,\s]+),", (BOOK / "references.bib").read_text(encoding="utf-8"), re.M))
    missing = []
    for path in [*BOOK.rglob("*.md"), *NOTEBOOKS]:
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", path.read_text(encoding="utf-8")):
            missing += [f"{path.name}: {key}" for key in map(str.strip, keys.split(",")) if key not in known]
    assert missing == []


def test_experiments_are_shown_but_not_executed() -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert config["execute"]["exclude_patterns"] == ["book/experiments/*"]


def test_a_page_with_code_cells_is_a_notebook() -> None:
    mixed = [p.name for p in BOOK.rglob("*.md") if "{code-cell}" in p.read_text(encoding="utf-8")]
    assert mixed == []


READERS = [(path, table) for path in CHAPTERS for table in sorted(tables_loaded(path))]


def test_some_chapter_reads_a_table() -> None:
    assert READERS


@pytest.mark.reliability
@pytest.mark.parametrize(("path", "table"), READERS, ids=[f"{p.stem}-{table}" for p, table in READERS])
def test_a_chapter_fails_when_a_table_it_reads_is_shuffled(path: Path, table: str) -> None:
    """An assert, and nothing else, must notice."""
    done = run_with_shuffled_tables(command(), path, table)
    assert done.returncode == 3, f"{table} shuffled, and nobody noticed:\n{done.stdout}{done.stderr[-2000:]}"
