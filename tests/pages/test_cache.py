"""A chapter is executed again when what it uses changed, and only then; a failed build does not pass later.

The toy book is built again and again.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import nbformat
import pytest
import yaml

from tests.support.toy_book import BUILD, make_project, pages
from tests.support.warm import command

pytestmark = pytest.mark.slow


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
    done = subprocess.run(
        [*command(), *BUILD],
        cwd=project,
        env={**os.environ, "KL_TOY_LOG": str(log), "REPOSITORY": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, sorted(log.read_text().split()), (done.stdout + done.stderr)[-4000:]


EDITS = (  # each is reverted while the next is made, in an order in which what a revert executed would show
    ("tables/numbers/table.csv", "2\n", ["loads"]),
    ("kl_companion/helper.py", "# a remark\n", ["attribute", "imports"]),  # imported by an import
    ("kl_companion/other.py", "# a remark\n", ["attribute"]),  # behind an attribute
)


def test_an_edit_executes_its_chapters_and_a_revert_none(project: Path) -> None:
    for file, text, expected in EDITS:
        path = project / file
        before = path.read_text()
        path.write_text(before + text)
        status, executed, output = build(project)
        assert (status, executed) == (0, expected), f"{file}: {output}"
        path.write_text(before)  # built with the next edit, or at last alone
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output


def test_what_no_chapter_uses_executes_nothing_and_a_new_page_is_in_every_sidebar(project: Path) -> None:
    (project / "kl_companion/unrelated.py").write_text("three = 3\n")
    init = (project / "kl_companion/__init__.py").read_text()
    listed = "if TYPE_CHECKING:\n"
    new = init.replace(listed, f"{listed}    from kl_companion.unrelated import three as three\n")
    assert new != init
    (project / "kl_companion/__init__.py").write_text(new)
    (project / "tables/letters/table.csv").write_text("a\n7\n")
    (project / "tables/numbers/provenance.json").write_text("{}\n")
    with (project / "book/_static/kl.css").open("a") as style:
        style.write("/* a remark */")
    (project / "book/added.md").write_text("# A chapter that came later\n")
    toc = yaml.safe_load((project / "_toc.yml").read_text())
    toc["chapters"].append({"file": "book/added"})
    (project / "_toc.yml").write_text(yaml.safe_dump(toc))
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output
    assert (project / "_build/html/_static/kl.css").read_text().endswith("/* a remark */")
    for page in (project / "_build/html/book").glob("*.html"):
        assert "A chapter that came later" in page.read_text(), page.name


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


def test_what_a_killed_build_has_left_is_not_trusted(project: Path) -> None:
    html = project / "_build/html"
    before = pages(html)
    mark = project / "_build/.doctrees/under_way"
    assert not mark.exists()
    # it noted what it had read, and was killed when it wrote the pages: one is older, one cut, one not there
    mark.touch()
    (html / "book/loads.html").write_text("the page from before an edit")
    (html / "book/imports.html").write_bytes(before["book/imports.html"][:99])
    (html / "genindex.html").unlink()
    status, executed, output = build(project)
    assert (status, executed) == (0, []), output
    assert pages(html) == before
    assert not mark.exists()


def test_half_of_an_executed_chapter_is_forgotten(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    monkeypatch.syspath_prepend(str(root / "book/_ext"))
    import kl_cache

    def put(code: str) -> Path:
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
        bundle = CacheBundleIn(made, f"{code}.ipynb")
        record = cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
        return folder / "executed" / record.hashkey / "base.ipynb"

    folder = tmp_path / "cache"
    kl_cache.forget_half_written(folder)
    assert not folder.exists()
    cache = get_cache(folder)
    whole, half, none, last = (put(f"x = {n}") for n in range(4))
    half.write_text(half.read_text()[:50])
    none.unlink()
    (folder / "executed/begun").mkdir()
    kl_cache.forget_half_written(folder)
    assert set(folder.glob("executed/*/*")) == {whole, last}
    assert len(list((folder / "executed").iterdir())) == 2
    assert sorted(record.uri for record in cache.list_cache_records()) == ["x = 0.ipynb", "x = 3.ipynb"]
    assert none == put("x = 2")  # jupyter-cache makes its folder, which must not be there
    (folder / "global.db").write_bytes(b"")  # killed when it was about to make the tables in it
    kl_cache.forget_half_written(folder)
    assert not folder.exists()


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


def test_a_chapter_depends_on_the_manifest_that_its_table_is_like(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "book/_ext"))
    import kl_cache

    kl_cache.closure()  # read from the project before its place changes
    written = {"numbers": "title: a\nlike: letters\n", "letters": "title: b\ngrid: {like: [1]}\n"}
    for name, text in written.items():
        (tmp_path / "tables" / name).mkdir(parents=True)
        (tmp_path / "tables" / name / "manifest.yml").write_text(text)
    monkeypatch.setattr(kl_cache, "ROOT", tmp_path)
    chapter = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("load('numbers')")])
    before = kl_cache.digest(nbformat.writes(chapter))
    assert kl_cache.digest(nbformat.writes(chapter)) == before
    (tmp_path / "tables/letters/manifest.yml").write_text("title: b\ngrid: {like: [2]}\n")
    assert kl_cache.digest(nbformat.writes(chapter)) != before
