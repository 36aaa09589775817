"""A chapter is executed again when what it uses changed, and only then; a failed build does not pass later.

A small project with the real extension and the real settings is built again and again. Each toy chapter
writes its name to a log when it runs, so executions are counted where they happen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

pytestmark = pytest.mark.slow
LOG = "import os\nwith open(os.environ['KL_TOY_LOG'], 'a') as log:\n    log.write('{name}\\n')\n"
INIT = '''"""Lazy."""
import importlib
_NAMES: dict[str, str] = {"one": "kl_companion.used", "two": "kl_companion.other"}
def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(name)
    return getattr(importlib.import_module(_NAMES[name]), name)
'''
TABLES = '''"""Read a table."""
from pathlib import Path
def load(name):
    return (Path(__file__).parents[2] / "tables" / name / "table.csv").read_text()
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
    package = project / "kl_companion"
    (package / "tables").mkdir(parents=True)
    shutil.copy(root / "kl_companion/tables/closure.py", package / "tables/closure.py")
    (package / "tables/__init__.py").write_text(TABLES)
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
        "loads": "from kl_companion import tables\nprint(tables.load('numbers'))",
        "attribute": "import kl_companion as kl\nprint(kl.one, kl.two)",
    }
    for name, code in chapters.items():
        text = notebook("import sys\nsys.path.insert(0, '..')\n" + LOG.format(name=name), code)
        (project / f"book/{name}.ipynb").write_text(text)
    (project / "book/intro.md").write_text("# Intro\n\nA page.\n")
    (project / "book/references.bib").write_text("")
    shutil.copy(root / "_config.yml", project / "_config.yml")
    toc = {"format": "jb-book", "root": "book/intro", "chapters": [{"file": f"book/{n}"} for n in chapters]}
    (project / "_toc.yml").write_text(yaml.safe_dump(toc))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A project that was built once."""
    project = tmp_path_factory.mktemp("book_project")
    make_project(root, project)
    status, executed, output = build(project)
    assert status == 0, output
    assert executed == ["attribute", "imports", "loads"]
    return project


def build(project: Path) -> tuple[int, list[str], str]:
    """Build the book as the Makefile does: exit status, names of the chapters that ran, what was printed."""
    log = project / "log.txt"
    log.write_text("")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "-n", "-W", "--keep-going"]
    done = subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "KL_TOY_LOG": str(log), "REPOSITORY": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, sorted(log.read_text().split()), (done.stdout + done.stderr)[-4000:]


def append(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(path.read_text() + text)


@pytest.mark.parametrize(
    ("file", "edit", "expected"),
    [
        ("kl_companion/other.py", append("# a remark\n"), ["attribute"]),
        ("kl_companion/helper.py", append("# a remark\n"), ["attribute", "imports"]),
        ("tables/numbers/table.csv", append("2\n"), ["loads"]),
    ],
    ids=["module behind an attribute", "module imported by an import", "table"],
)
def test_an_edit_executes_its_chapters_and_a_revert_none(
    project: Path, file: str, edit: Callable[[Path], Any], expected: list[str]
) -> None:
    path = project / file
    before = path.read_text()
    edit(path)
    status, executed, output = build(project)
    assert (status, executed) == (0, expected), output
    path.write_text(before)
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output


def test_what_no_chapter_uses_executes_nothing(project: Path) -> None:
    (project / "kl_companion/unrelated.py").write_text("three = 3\n")
    init = (project / "kl_companion/__init__.py").read_text()
    new = init.replace('{"one"', '{"three": "kl_companion.unrelated", "one"')
    assert new != init
    (project / "kl_companion/__init__.py").write_text(new)
    (project / "tables/letters/table.csv").write_text("a\n7\n")
    (project / "tables/numbers/provenance.json").write_text("{}\n")
    append("/* a remark */")(project / "book/_static/kl.css")
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output
    assert (project / "_build/html/_static/kl.css").read_text().endswith("/* a remark */")
    page = project / "_build/html/book/loads.html"
    assert "A chapter" in page.read_text()


def test_a_failed_build_fails_until_it_is_repaired(project: Path) -> None:
    path = project / "book/imports.ipynb"
    before = path.read_text()
    path.write_text(before.replace("print(one)", "print(one / 0)"))
    for attempt in ("first", "second"):
        status, executed, output = build(project)
        assert status != 0, f"the {attempt} build passed: {output}"
        assert executed == ["imports"]
        assert "ZeroDivisionError" in output
    path.write_text(before)
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output  # the repaired chapter is the one of the first build


def test_a_new_chapter_appears_in_the_sidebar_of_every_page(project: Path) -> None:
    (project / "book/added.md").write_text("# A chapter that came later\n")
    toc = yaml.safe_load((project / "_toc.yml").read_text())
    toc["chapters"].append({"file": "book/added"})
    (project / "_toc.yml").write_text(yaml.safe_dump(toc))
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output
    for page in (project / "_build/html/book").glob("*.html"):
        assert "A chapter that came later" in page.read_text(), page.name


def test_tables_are_found_in_calls_of_load_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "book/_ext"))
    import kl_cache

    known = {"numbers", "letters"}
    assert kl_cache.tables_used("x = tables.load('numbers')", known) == {"numbers"}
    assert kl_cache.tables_used("x = load(name='letters')", known) == {"letters"}
    assert kl_cache.tables_used("x = 'numbers'; json.dumps('letters')", known) == set()
    assert kl_cache.tables_used("x = 'numbers'; load(x)", known) == {"numbers"}
    assert kl_cache.tables_used("load(x)", known) == known
    assert kl_cache.tables_used("def (", known) == known
