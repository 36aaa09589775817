"""The ledger's page: every row once, with its verdict, its numbers, its chapter and the code of its check."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from kl_book import tables
from kl_book.ledger.claims import FAILING, VERDICTS, register
from kl_book.ledger.claims.ledger import checks
from kl_book.ledger.claims.listing import Ledger, chapter_titles, section_of, source_of
from kl_book.ledger.claims.page import anchor
from tests.support.chapters import code_cells
from tests.support.claims_table import VERDICT_OF

ROOT = Path(__file__).resolve().parents[4]
BOOK = ROOT / "book"
WITHOUT_A_CHAPTER = {"TM-refs", "WZ-refs", "WZ-refs-shah", "WZ-equations-lost"}  # about the text as a text


@pytest.fixture(scope="module")
def claims():
    return tables.load("claims")


@pytest.fixture(scope="module")
def ledger(claims):
    return Ledger(claims, chapter_titles(BOOK))


def test_the_table_is_the_register(claims):
    assert list(claims["id"]) == list(register())
    for found in claims.itertuples():
        row = register()[found.id]
        assert (found.source, found.location, found.kind, found.statement) == row[1:5]
        assert ("" if pd.isna(found.chapter) else found.chapter) == row.chapter
        assert found.how == checks()[found.id].how


def test_errors_of_the_table_give_its_verdicts(claims):
    zero = claims[["printed_error", "condition_error", "corrected_error"]] == "below 1e-09"
    holds = claims["verdict"] == "holds"
    assert zero.loc[holds, "printed_error"].all()
    assert zero.loc[claims["verdict"] == "holds only if", "condition_error"].all()
    assert zero.loc[claims["verdict"] == "misprint", "corrected_error"].all()
    assert not zero.loc[claims["verdict"].isin(FAILING), "printed_error"].any()


def test_every_row_once_with_what_a_reader_needs(ledger, claims):
    page = ledger._repr_html_()
    anchors = re.findall(r'id="(claim-[^"]+)"', page)
    assert anchors == [anchor(id) for id in claims["id"]]
    assert len(set(anchors)) == len(anchors)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", a) for a in anchors)  # a selector of CSS may hold it
    assert page.count("<pre>") == page.count("</details>") == len(claims)
    for verdict, count in Counter(claims["verdict"]).items():
        assert page.count(f">{verdict}</span>") == count
    for id in claims["id"]:
        assert f"python -m kl_book claims {id}</code>" in page
    assert page.count("<dt>Counterexample</dt>") >= claims["verdict"].isin(FAILING).sum()
    assert str(ledger).count("\n") == len(claims) - 1


def test_counts_add_up(ledger, claims):
    counts = ledger.counts()
    assert list(counts) == list(dict.fromkeys(claims["source"]))
    assert sum(n for c in counts.values() for n in c.values()) == len(claims)
    theirs = [row.id for row in register().values() if row.source == "shah2025comedy"]
    silent = [id for id in theirs if VERDICT_OF[id] == "not reproducible here"]
    assert counts["shah2025comedy"]["not reproducible here"] == len(silent) > 0


def test_filters_offer_what_is_there(ledger, claims):
    page = ledger._repr_html_()
    values = set(re.findall(r'<option value="([^"]*)"', page))
    assert set(claims["source"]) <= values
    sections = set(re.findall(r'data-section="([^"]*)"', page))
    assert sections <= values
    assert {
        "failing",
        "holds",
        "misprint",
        "only-if",
        "false",
        "bibliography",
        "open",
        "unexamined",
    } <= values


@pytest.mark.parametrize(
    ("location", "section"),
    [("5.1, Figure 7", "5.1"), ("Fig 9 / App B", "Fig 9"), ("Table 4 (Qwen)", "Table 4"), ("3", "3")],
)
def test_section_of_a_location(location, section):
    assert section_of(location) == section


def test_the_code_of_a_check_is_that_of_its_function():
    assert "def " in source_of(checks()["TM-KL-def"].check)
    made = [c for c in checks().values() if c.check.__name__ == "<lambda>"]
    assert all(source_of(c.check).startswith(("def ", "@")) for c in made)
    assert len(made) > 10


def test_rows_and_chapters_name_each_other():
    """A row without a chapter, a chapter without a row, or one that does not show its rows."""
    rows = Counter(row.chapter for row in register().values())
    others = list(register().values())
    assert {row.id for row in others if not row.chapter} == WITHOUT_A_CHAPTER
    files = {p.relative_to(BOOK).with_suffix("").as_posix(): p for p in BOOK.glob("part*/*.ipynb")}
    assert set(rows) - {""} <= set(files)
    silent = set(files) - set(rows)
    assert silent == {
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
    page = Ledger(row)._repr_html_()
    assert "a &lt; b &amp; π" in page
    assert "&lt;i&gt;" in page
    assert "below 1e-09 as printed" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.drop(columns="verdict"), "no column 'verdict'"),
        (lambda c: c.assign(verdict="true"), "verdict 'true', expected one of"),
        (lambda c: c.assign(id="nobody"), "'nobody' is the id of no check"),
        (lambda c: c.iloc[:0], "no row"),
    ],
)
def test_bad_tables(claims, change, message):
    with pytest.raises(ValueError, match=message):
        Ledger(change(claims.head(2)))


def test_the_verdicts_are_the_five_bibliography_and_what_is_left():
    assert len(VERDICTS) == 7
