"""The pages of the ledger: every row once, with its verdict, numbers, chapter and the code of its check."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from kl_book import tables
from kl_book.ledger.claims import FAILING, VERDICTS, register
from kl_book.ledger.claims.ledger import checks
from kl_book.ledger.claims.listing import Contents, chapter_titles, section_of, source_of, statements_of
from kl_book.ledger.rendering import address, anchor, page_of, pages
from tests.support.chapters import code_cells
from tests.support.claims_table import VERDICT_OF

ROOT = Path(__file__).resolve().parents[4]
BOOK = ROOT / "book"
WITHOUT_A_CHAPTER = {"TM-refs", "WZ-refs", "WZ-refs-shah", "WZ-equations-lost"}  # about the text as a text


@pytest.fixture(scope="module")
def claims():
    return tables.load("claims")


@pytest.fixture(scope="module")
def contents(claims):
    return Contents(claims, chapter_titles(BOOK))


@pytest.fixture(scope="module")
def papers(claims):
    """{page: its statements in HTML}."""
    titles = chapter_titles(BOOK)
    return {page: statements_of(page, claims, titles)._repr_html_() for page in pages()}


def test_the_table_is_the_register(claims):
    assert list(claims["id"]) == list(register())
    for found in claims.itertuples():
        row = register()[found.id]
        assert (found.source, found.location, found.kind, found.statement) == tuple(row.place.values())[1:5]
        assert ("" if pd.isna(found.chapter) else found.chapter) == row.chapter
        assert found.how == register()[found.id].how


def test_errors_of_the_table_give_its_verdicts(claims):
    zero = claims[["printed_error", "condition_error", "corrected_error"]] == "below 1e-09"
    holds = claims["verdict"] == "holds"
    assert zero.loc[holds, "printed_error"].all()
    assert zero.loc[claims["verdict"] == "holds only if", "condition_error"].all()
    assert zero.loc[claims["verdict"] == "misprint", "corrected_error"].all()
    assert not zero.loc[claims["verdict"].isin(FAILING), "printed_error"].any()


def test_every_row_once_with_what_a_reader_needs(papers, claims):
    every = "".join(papers.values())
    anchors = re.findall(r'id="(claim-[^"]+)"', every)
    assert anchors == [anchor(id) for id in claims["id"]]
    assert len(set(anchors)) == len(anchors)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", a) for a in anchors)  # a selector of CSS may hold it
    assert every.count("</details>") == len(claims)
    assert every.count("<pre>") == len(checks())  # a check that rows share is shown once
    assert every.count("<dt>Code</dt><dd>that of <a ") == sum(bool(row.check) for row in register().values())
    for verdict, count in Counter(claims["verdict"]).items():
        assert every.count(f">{verdict}</span>") == count
    for id in claims["id"]:
        assert f"python -m kl_book claims {id}</code>" in papers[page_of(id)]
    assert every.count("<dt>Counterexample</dt>") >= claims["verdict"].isin(FAILING).sum()


def test_no_page_is_long(papers, contents):
    """A page has about 60 kB beside its statements."""
    assert {page: len(html) for page, html in papers.items() if len(html.encode()) > 240_000} == {}
    assert len(contents._repr_html_().encode()) < 240_000


def test_a_source_with_several_pages_begins_each_with_the_row_that_is_named():
    assert page_of("EMA-abstract-topk") == "emapg2026"
    assert [ids[0] for page, ids in pages().items() if page.startswith("emapg2026_")] == [
        "EMA-appA-sign",
        "EMA-eq127-129",
    ]
    assert sum(map(len, pages().values())) == len(register())
    assert {path.stem for path in (BOOK / "ledger").glob("*.md")} == set(pages())
    assert address("EMA-eq127-129") == "ledger/emapg2026_policies.html#claim-EMA-eq127-129"


def test_the_contents_lead_to_every_row(contents, claims):
    html = contents._repr_html_()
    assert re.findall(r'<li class=[\w-]+ data-c=\d+><a href="([^"]+)"', html) == [
        address(id) for id in claims["id"]
    ]
    assert str(contents).count("\n") == len(claims) - 1
    for chapter in set(claims["chapter"].dropna()):
        assert f'data-chapter="{chapter}"' in html


def test_counts_add_up(contents, claims):
    counts = contents.counts()
    assert list(counts) == list(dict.fromkeys(claims["source"]))
    assert sum(n for c in counts.values() for n in c.values()) == len(claims)
    theirs = [row.id for row in register().values() if row.source == "shah2025comedy"]
    silent = [id for id in theirs if VERDICT_OF[id] == "not reproducible here"]
    assert counts["shah2025comedy"]["not reproducible here"] == len(silent) > 0


def test_filters_offer_what_is_there(contents, papers, claims):
    html = contents._repr_html_()
    values = set(re.findall(r'<option value="([^"]*)"', html))
    assert set(claims["source"]) <= values
    signs = {"failing", "holds", "misprint", "only-if", "false", "bibliography", "open"}
    assert signs <= values
    assert ("unexamined" in values) == ("not examined yet" in set(claims["verdict"]))
    for page in papers.values():
        sections = set(re.findall(r'data-section="([^"]*)"', page))
        assert sections
        assert sections <= set(re.findall(r'<option value="([^"]*)"', page))


@pytest.mark.parametrize(
    ("location", "section"),
    [("5.1, Figure 7", "5.1"), ("Fig 9 / App B", "Fig 9"), ("Table 4 (Qwen)", "Table 4"), ("3", "3")],
)
def test_section_of_a_location(location, section):
    assert section_of(location) == section


def test_the_code_of_a_check_is_that_of_its_function():
    assert "def " in source_of(checks()["TM-KL-def"].generator)
    made = [c for c in checks().values() if "<locals>" in c.generator.__qualname__]
    assert all(source_of(c.generator).startswith(("def ", "@")) for c in made)
    assert made


def test_rows_and_chapters_name_each_other():
    """A row without a chapter, a chapter without a row, or one that does not show its rows."""
    rows = Counter(row.chapter for row in register().values())
    others = list(register().values())
    assert {row.id for row in others if not row.chapter} == WITHOUT_A_CHAPTER
    files = {p.relative_to(BOOK).with_suffix("").as_posix(): p for p in BOOK.glob("part*/*.ipynb")}
    assert set(rows) - {""} <= set(files)
    silent = set(files) - set(rows)
    assert silent == {
        "part3_sequences/03_what_one_token_hides",
        "part4_vocabulary/03_at_vocabulary_scale",
        "part8_language_models/01_exact_oracle",
        "part8_language_models/05_a_real_model",
        "part8_language_models/06_training_a_real_model",
        "part9_frameworks/01_what_the_frameworks_optimize",
        "part9_frameworks/02_in_your_trainer",
        "part9_frameworks/03_reading_your_run",
    }
    for chapter in set(rows) - {""}:
        code = "".join("\n".join(code_cells(files[chapter])).split())
        assert f'source_statements("{chapter}")' in code, chapter


def test_titles_are_the_first_headings():
    titles = chapter_titles(BOOK)
    wanted = "RL with a KL term, on a small language model"
    assert titles["part8_language_models/02_rl_with_a_kl_term"] == wanted
    assert len(titles) == len(list(BOOK.glob("part*/*.ipynb")))


def test_text_is_escaped_and_numbers_are_said(claims):
    row = claims[claims["id"] == "TM-fig1"].assign(statement="a < b & \\pi", counterexample="<i>")
    page = statements_of("tang2025pitfalls", row)._repr_html_()
    assert "a &lt; b &amp; π" in page
    assert "&lt;i&gt;" in page
    assert "below 1e-09 as printed" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.drop(columns="verdict"), "no column 'verdict'"),
        (lambda c: c.assign(verdict="true"), "verdict 'true', expected one of"),
        (lambda c: c.assign(id="nobody"), "'nobody' is the id of no row"),
        (lambda c: c.iloc[:0], "no row"),
    ],
)
def test_bad_tables(claims, change, message):
    with pytest.raises(ValueError, match=message):
        Contents(change(claims.head(2)))


def test_the_verdicts_are_the_five_bibliography_and_what_is_left():
    assert len(VERDICTS) == 7
