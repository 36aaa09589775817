"""Figures have numbers that text can name; tables have one row of headings."""

import pytest
from docutils import nodes
from docutils.utils import new_document

from tests.support.data import data
from tests.support.extensions import extension

DATA = data(__file__)
Rows = list[list[str]]

numbers = extension("kl_numbers")
FIGURE = '<figure class="kl-figure"><img src="a.svg"><figcaption>A curve.</figcaption></figure>'
BARE = '<figure class="kl-figure kl-hero"><img src="b.svg"></figure>'
LINK = '<p><a class="kl-fig" href="#figure-2">Figure 2</a></p>'


def test_a_figure_has_the_number_of_its_chapter_and_its_place() -> None:
    body = numbers.numbered(f"{LINK}{FIGURE}<p>text</p>{BARE}", "4.2")
    assert '<figure class="kl-figure" id="figure-1"><img src="a.svg">' in body
    assert "<figcaption><span>Figure 4.2.1.</span> A curve.</figcaption>" in body
    assert '<figure class="kl-figure kl-hero" id="figure-2"><img src="b.svg">' in body
    assert "<figcaption><span>Figure 4.2.2.</span> </figcaption>" in body
    assert '<p><a class="kl-fig" href="#figure-2">Figure 4.2.2</a></p>' in body


def test_a_page_without_a_number_counts_its_figures() -> None:
    assert "<span>Figure 1.</span> A curve." in numbers.numbered(FIGURE, "")


def test_a_figure_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"got \{fig\}`2`, wanted one of the 1 figures of the page"):
        numbers.numbered(LINK + FIGURE, "4.2")


class Inliner:
    reporter = new_document("x").reporter

    def problematic(self, raw: str, *_: object) -> nodes.Node:
        return nodes.problematic(raw, raw)


def test_the_role_is_a_link() -> None:
    (link, latex), messages = numbers.role("fig", "{fig}`2`", "2", 1, Inliner())
    assert f"<p>{link.astext()}</p>" == LINK
    assert latex.astext() == "Figure 2"
    assert messages == []


@pytest.mark.parametrize("text", ["0", "two", "", "2b"])
def test_a_role_without_a_number_is_an_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, messages = numbers.role("fig", f"{{fig}}`{text}`", text, 1, Inliner())
    assert "wanted which figure of the page" in messages[0].astext()


def head(*rows: str) -> str:
    return "<thead>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</thead><tbody></tbody>"


def cells(*texts: str) -> str:
    return "".join(f"<th>{text}</th>" for text in texts)


@pytest.mark.parametrize(("given", "wanted"), DATA["headings"])
def test_a_row_of_headings_with_nothing_but_names_is_merged(
    given: list[list[str]], wanted: list[list[str]]
) -> None:
    before, after = (head(*(cells(*row) for row in rows)) for rows in (given, wanted))
    assert numbers.one_row_of_headings(before) == after


def test_a_frame_of_pandas() -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index([3, 4], name="d"))
    body = numbers.one_row_of_headings(frame.to_html())
    assert body.count("<tr") == 3
    assert "<th>d</th>\n      <th>a</th>" in body or "<th>d</th><th>a</th>" in body


def test_a_table_with_formulas_is_read_by_mathjax() -> None:
    start = '<table border="1" class="dataframe'
    plain, formula = (f'{start}"><tr><td>{x}</td></tr></table>' for x in ("1 ( 2", r"\(w\)"))
    assert (
        numbers.typeset(plain + formula + plain)
        == plain + formula.replace('dataframe"', 'dataframe mathjax_process"') + plain
    )
