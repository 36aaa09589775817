"""The page "Experiments" lists every result table; what the package draws stands in pages without code."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes

from kl_book import tables
from tests.support.extensions import ROOT, extension

experiments, figures = extension("kl_experiments"), extension("kl_figures")


def notebook(path: Path, heading: str, code: str = "") -> None:
    """A notebook of one heading and one cell of code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [
        {"cell_type": "markdown", "source": [f"(label)=\n# {heading}\n", "text"]},
        {"cell_type": "code", "source": [code], "metadata": {}},
    ]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two tables, the second like the first, one chapter that loads the second and one that loads none."""
    for name, text in (
        ("noise", "title: Noise of |K1|\nnotebook: book/experiments/noise.ipynb\n"),
        ("noise_real", "like: noise\ntitle: Noise of a real model\n"),
    ):
        (tmp_path / "tables" / name).mkdir(parents=True)
        (tmp_path / "tables" / name / "manifest.yml").write_text(text, encoding="utf-8")
    notebook(tmp_path / "book" / "experiments" / "noise.ipynb", "Experiment: noise of one sample")
    loads = 'from kl_book import tables\n\ntables.load("noise_real")\n'
    notebook(tmp_path / "book" / "part1" / "01_noise.ipynb", "Noise", loads)
    notebook(tmp_path / "book" / "part1" / "02_none.ipynb", "None", "x = 1\n")
    return tmp_path


def test_every_table_has_a_row_with_its_notebook_and_the_chapters_that_load_it(project: Path) -> None:
    pages = ["book/experiments/noise", "book/intro", "book/part1/01_noise", "book/part1/02_none"]
    head, rule, first, second = experiments.listed(project, pages).splitlines()
    assert head.count("|") == rule.count("|") == first.count("|") == 5
    page = "(/book/experiments/noise.ipynb)"
    table = "{download}`noise </tables/noise/table.csv>`"
    what = "Noise of &#124;K1&#124;"
    assert first == f"| [Noise of one sample]{page} | {table} | {what} | only on its own page |"
    table = "{download}`noise_real </tables/noise_real/table.csv>`"
    used = "[](/book/part1/01_noise.ipynb)"
    assert (
        second
        == f"| [Noise of one sample (with a real model)]{page} | {table} | Noise of a real model | {used} |"
    )


def test_the_book_lists_all_of_its_tables() -> None:
    rows = experiments.listed(ROOT, []).splitlines()[2:]
    assert len(rows) == len(list((ROOT / "tables").glob("*/manifest.yml")))


def prose_of(name: str) -> str:
    """The text of an experiment, on one line."""
    cells = json.loads((ROOT / "book" / "experiments" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = " ".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return " ".join(text.split())


def test_the_totals_that_the_experiments_state_are_those_of_their_tables() -> None:
    mutants, faults = tables.load("mutants_caught"), tables.load("seeded_faults").fillna("")
    real = mutants[mutants.equivalent == "no"]
    noticed = {c: real[c] == "yes" for c in ("audit", "assert_conforms", "formula")}
    a, c, f = noticed.values()
    text = prose_of("mutants_caught")
    assert f"there are {len(mutants)} mutants, and {len(mutants) - len(real)} of them are equivalent" in text
    by_tool = f"audit notices {a.sum()}, `assert_conforms` {c.sum()} and the whole formula {f.sum()}."
    assert f"Of the other {len(real)}, the {by_tool}" in text
    assert f"notices {(f & ~a).sum()} slips that the audit does not, and the audit none" in text
    assert not (a & ~f).any()
    assert f"misses {(a & ~c).sum()} slips that the audit notices. The {(~a & ~f).sum()} that" in text
    planted = faults[faults.fault != ""]
    text = prose_of("seeded_faults")
    with_one = f"{len(planted)} cases with one of {planted.fault.nunique()} mistakes"
    assert f"{with_one}, all found with their line, and {len(faults) - len(planted)} cases without" in text
    (said,) = faults[faults.case == "kl_times_advantage"].says
    assert said in text
    assert (faults.found == "yes").all()


def run_directive(target: str) -> tuple[list[nodes.Node], list[str]]:
    """What ``{from-package}`` gives for a function, and the files that it was told to watch."""
    watched: list[str] = []
    parsed: list[list[str]] = []

    def parse(lines: list[str], offset: int, into: nodes.Element) -> None:
        parsed.append(list(lines))
        into += nodes.paragraph(text="\n".join(lines))

    settings = SimpleNamespace(env=SimpleNamespace(srcdir=str(ROOT), note_dependency=watched.append))
    state = SimpleNamespace(document=SimpleNamespace(settings=settings), nested_parse=parse)
    machine = SimpleNamespace(reporter=None)
    directive = figures.FromPackage("from-package", [target], {}, None, 1, 0, "", state, machine)
    return directive.run(), watched


def test_text_of_the_package_is_read_as_markdown_and_a_drawing_stays_html(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import kl_book.front as front

    monkeypatch.setattr(front, "words", lambda: "| a |\n| :--- |", raising=False)
    monkeypatch.setattr(front, "drawn", lambda: SimpleNamespace(_repr_html_=lambda: "<svg/>"), raising=False)
    (text,), watched = run_directive("kl_book.front:words")
    assert text.astext() == "| a |\n| :--- |"
    assert str(ROOT / "tables" / "real_rl" / "table.csv") in watched
    assert __file__ in watched
    (html,), _ = run_directive("kl_book.front:drawn")
    assert (html.astext(), html["format"]) == ("<svg/>", "html")
