"""What the book's extension makes of formulas, folds, words and checks, without building the book."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from docutils import nodes

from tests.support.data import data

DATA = data(__file__)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """A module of book/_ext, named by the test's parameter."""
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    return import_module(request.param)


def using(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("part", [name], indirect=True)


@using("kl_tex")
@pytest.mark.parametrize(("tex", "html"), DATA["formulas"])
def test_a_short_formula_in_letters(part: ModuleType, tex: str, html: str) -> None:
    assert part.tex_to_html(tex) == html


@using("kl_tex")
def test_a_macro_without_a_letter_is_refused(part: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"\\unknown"):
        part.tex_to_html(r"\unknown{x}")


FOLDED = """<p>a</p><div class="solution dropdown admonition" id="s">
<p class="admonition-title" id="t">Solution to <a href="#e">Exercise 1</a></p>
<div><div>inside</div></div></div><div class="admonition note"><p class="admonition-title">N</p></div>"""


@using("kl_reading")
def test_what_drops_down_becomes_details(part: ModuleType) -> None:
    html = part.fold(FOLDED)
    assert (
        '<details class="solution kl-fold admonition" id="s"><summary class="admonition-title" id="t">'
        in html
    )
    assert "Solution to Exercise 1</summary>\n<div><div>inside</div></div></details>" in html
    assert html.endswith('<div class="admonition note"><p class="admonition-title">N</p></div>')
    nested = FOLDED.replace("inside", FOLDED)
    assert part.fold(nested).count("</details>") == 2
    with pytest.raises(ValueError, match="without a title or an end"):
        part.fold('<div class="admonition dropdown"><p>no title</p></div>')


@using("kl_reading")
def test_a_proof_folds_below_its_name_and_ids_are_unique(part: ModuleType) -> None:
    proof = '<div class="proof dropdown admonition" id="proof">\n<p>Proof. By <em>x</em>.</p>\n</div>'
    unique = part.unique_ids(proof + '<section id="exercise-content"><p>y</p></section>')
    assert "id=" not in unique
    assert part.fold(unique) == (
        '<details class="proof kl-fold admonition kl-proof"><summary class="admonition-title">Proof</summary>'
        "<p>By <em>x</em>.</p>\n</details><section><p>y</p></section>"
    )


@using("kl_reading")
@pytest.mark.parametrize(("grade", "word"), [("grade-1", "warm-up"), ("grade-3", "project"), ("note", "")])
def test_an_exercise_says_what_it_asks_for(part: ModuleType, grade: str, word: str) -> None:
    from docutils import utils

    doctree = utils.new_document("page")
    doctree += nodes.admonition("", nodes.title("", "Name"), classes=["exercise", grade])
    part.name_grades(doctree)
    assert doctree[0][0].astext().split() == ["Name", *word.split()]


@using("kl_cards")
def test_a_term_is_a_word_of_its_own(part: ModuleType) -> None:
    found = [
        m[0]
        for m in part.pattern(["K3", "K3++", "reverse KL"]).finditer(
            "K3++ and K3s, Reverse KL; K30, xK3, K3-x"
        )
    ]
    assert found == ["K3++", "K3s", "Reverse KL"]


@using("kl_cards")
def test_the_code_of_statements_is_listed_with_one_pattern_for_all(
    part: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from docutils import utils

    doctree, patterns = utils.new_document("page"), []
    for title in ("K3 of a reverse KL", "Reverse KL", "Neither"):
        doctree += nodes.admonition("", nodes.title("", title), classes=["proof"])
    build = part.pattern
    monkeypatch.setattr(part, "pattern", lambda terms: patterns.append(terms) or build(terms))
    app = SimpleNamespace(builder=SimpleNamespace(get_relative_uri=lambda source, target: target))
    codes = {"K3": ["k3"], "reverse KL": ["exact_kl", "k3", "k4", "unknown"]}
    cards = {name: part.Card("api", name, "") for name in ("k3", "k4", "exact_kl")}
    used = part.add_code(app, doctree, "page", cards, codes)
    listed = [p.astext() for p in doctree.findall(nodes.paragraph)]
    assert listed == ["In code: k3, exact_kl, k4", "In code: exact_kl, k3, k4"]
    assert list(used) == ["api#k3", "api#exact_kl", "api#k4"]
    assert patterns == [["K3", "reverse KL"]]


@using("kl_links")
def test_what_a_chapter_imports(part: ModuleType) -> None:
    cells = [
        {"cell_type": "code", "source": ["from kl_companion import k1, k3\n", "import torch"]},
        {"cell_type": "code", "source": "from kl_companion.losses import kl_loss\nfrom math import log"},
        {"cell_type": "markdown", "source": "from kl_companion import k5"},
    ]
    assert part.imported(json.dumps({"cells": cells})) == {"k1", "k3", "kl_loss"}


@using("kl_reading")
def test_a_relative_link_leads_to_a_page(part: ModuleType) -> None:
    assert part._docname("book/part1/01_a", "../quickstart.html") == "book/quickstart"
    assert part._docname("book/part1/01_a", "02_b.html") == "book/part1/02_b"
    assert part._docname("book/intro", "part1/01_a.html") == "book/part1/01_a"


@using("kl_reading")
def test_a_fold_says_what_it_holds(part: ModuleType) -> None:
    from docutils import nodes, utils
    from myst_nb.sphinx_ import HideCodeCellNode

    def labels(html: str, *, whole: bool) -> tuple[str, str]:
        fold = HideCodeCellNode("")
        output = nodes.container("", nodes.raw("", html, format="html"))
        doctree = utils.new_document("page")
        cell = nodes.container("", fold)
        (fold if whole else cell).append(output)
        doctree += cell
        if whole:
            fold.parent = None  # as MyST-NB leaves it
        part.name_folded_code(doctree)
        return fold["prompt_show"], fold["prompt_hide"]

    assert labels("<figure>", whole=False) == ("Show the code of this figure", "Hide the code of this figure")
    assert labels("<p>", whole=False) == ("Show the code", "Hide the code")
    assert labels("<table>", whole=True) == ("Show the table", "Hide the table")
    assert labels("<p>", whole=True) == ("Show the cell", "Hide the cell")
