"""Which cells get a button: visible ones that print, and that print the same with the page's Python."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docutils import nodes
from docutils.utils import new_document

from kl_book.paste.bundle import write_bundle
from tests.support.extensions import extension

here = extension("kl_here")
PAGE = "book/part1/chapter"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("build") / "package" / "package-0.zip"
    path.parent.mkdir()
    write_bundle(path)
    return path


def cell(code: str, printed: str, kind: str = "stream", tag: str = "") -> nodes.container:
    """A cell as MyST-NB makes it."""
    inside = [
        nodes.container("", nodes.literal_block(code, code), classes=["cell_input"]),
        nodes.container(
            "", nodes.literal_block(printed, printed, classes=["output", kind]), classes=["cell_output"]
        ),
    ]
    return nodes.container("", *inside, classes=["cell", *filter(None, [tag])])


def buttons(
    archive: Path, *cells: nodes.container, page: str = PAGE, built: bool = True
) -> tuple[list[bool], Any]:
    """Whether each cell of a page has a button, and what is noted of the page."""
    folder = archive.parents[1]
    sources = [{"cell_type": "code", "source": [c[0].astext()]} for c in cells]
    (folder / "chapter.ipynb").write_text(json.dumps({"cells": sources}), encoding="utf-8")
    env = SimpleNamespace(docname=page, metadata={}, note_dependency=lambda path: None)
    env.kl_python = (9, archive.name) if built else (0, "")
    env.doc2path = lambda name: str(folder / "chapter.ipynb")
    document = new_document("chapter")
    document.extend(cells)
    here.add_buttons(SimpleNamespace(env=env, outdir=str(folder / "html")), document)
    return [any(isinstance(x, nodes.raw) for x in c) for c in cells], env.metadata.get(page, {}).get(
        "kl_paste"
    )


SAME = cell("import torch\nprint(torch.ones(2).sum().item())", "2.0\n")


def test_a_cell_that_prints_the_same_has_a_button(archive: Path) -> None:
    other = cell("import torch\nprint(torch.ones(2).sum().item())", "3.0\n")
    assert buttons(archive, SAME.deepcopy(), other) == ([True, False], "cell")


@pytest.mark.parametrize(
    "other",
    [
        cell("print(1)\nimport pandas", "1\n"),
        cell("import time\ntime.sleep(9)\nprint(1)", "1\n"),
        cell("print(1)", "1\n", kind="text_plain"),
        cell("print(1)", "1\n", tag="tag_hide-input"),
        cell("x = 1", ""),
    ],
    ids=["package", "slow", "no stream", "folded", "nothing printed"],
)
def test_a_cell_that_cannot_run_or_is_not_seen_has_none(
    archive: Path, other: nodes.container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "PATIENCE", 2)
    assert buttons(archive, other.deepcopy())[0] == [False]


def test_a_cell_whose_earlier_cells_cannot_run_has_none(archive: Path) -> None:
    cells = cell("import pandas\nx = pandas.NA", ""), cell("print(x is x)", "True\n")
    assert buttons(archive, *cells)[0] == [False, False]


def test_the_button_holds_what_earlier_cells_must_do_first(archive: Path) -> None:
    first, second = cell('text = "<b>"', ""), cell("print(text)", "<b>\n")
    assert buttons(archive, first, second)[0] == [False, True]
    html = next(x for x in second if isinstance(x, nodes.raw)).astext()
    assert 'data-before="text = &#39;&lt;b&gt;&#39;"' in html
    assert second.index(next(x for x in second if isinstance(x, nodes.raw))) == 1


def test_without_python_for_the_browser_no_cell_has_one_and_the_page_is_read_again_with_it(
    archive: Path,
) -> None:
    assert buttons(archive, SAME.deepcopy(), built=False) == ([False], "")


def test_pages_that_are_no_chapters_have_none(archive: Path) -> None:
    assert buttons(archive, SAME.deepcopy(), page="book/quickstart") == ([False], None)
