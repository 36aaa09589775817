"""The errata: every failing row in one entry, texts that a reader can use, and the page that shows them."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest

from kl_book import tables
from kl_book.ledger.claims import CORRECTED, register
from kl_book.ledger.claims.rows import errata
from kl_book.ledger.claims.standard import NAMES
from kl_book.ledger.claims.texts import letters, rows_as_texts, typeset
from kl_book.ledger.corrections import COLUMNS, CONSEQUENCES, conditions_page, errata_page
from kl_book.ledger.rendering import address, anchor
from tests.support.claims_table import VERDICT_OF

ERRATA = errata()
TEXTS = ("title", "printed", "why", "charitable")
LISTED = [id for entry in ERRATA for id in entry.rows]
FORBIDDEN = (
    *("obviously", "clearly", "of course", "trivially", "sloppy", "careless", "embarrass", "nonsense"),
    *("wrongly claim", "falsely", "mislead", "the authors fail", "the authors forgot", "unfortunately", "!"),
)
every_entry = pytest.mark.parametrize("entry", ERRATA, ids=lambda e: e.rows[0])


@pytest.fixture(scope="module")
def claims():
    """The rows of the table; that it says what the checks find is tested beside the ledger."""
    table = tables.load("claims").set_index("id", drop=False)
    return table.loc[LISTED, list(COLUMNS)].reset_index(drop=True)


@pytest.fixture(scope="module")
def evidence(claims):
    return {row["id"]: SimpleNamespace(**row) for row in rows_as_texts(claims, COLUMNS)}


def test_every_failing_row_is_in_one_entry_and_beside_them_only_bibliography():
    assert len(LISTED) == len(set(LISTED))
    assert {id for id in register() if VERDICT_OF[id] in CORRECTED} <= set(LISTED)
    assert {VERDICT_OF[id] for id in LISTED} <= {*CORRECTED, "bibliography"}


@every_entry
def test_bibliography_is_a_class_of_its_own(entry):
    books = {VERDICT_OF[id] == "bibliography" for id in entry.rows}
    assert books == {entry.consequence == "bibliography"}


@every_entry
def test_rows_share_a_source(entry):
    assert {register()[id].source for id in entry.rows} == {entry.source}


def test_entries_are_ordered_by_consequence_and_top_k_is_the_first():
    places = [list(CONSEQUENCES).index(entry.consequence) for entry in ERRATA]
    assert places == sorted(places)
    assert {"EMA-alg1", "EMA-alg2", "EMA-eq25-26", "EMA-eq27", "EMA-abstract-topk"} <= set(ERRATA[0].rows)


@every_entry
def test_texts_can_be_read(entry):
    for name in TEXTS:
        text = getattr(entry, name)
        assert text == text.strip()
        assert 0 < len(text) <= (100 if name == "title" else 600)
        assert "\\" not in letters(text)
        assert "  " not in text
        for word in FORBIDDEN:
            assert word not in text.lower(), (name, word)
        if name != "title":
            assert text.endswith(".")
    assert not entry.title.endswith(".")


@every_entry
def test_an_entry_names_a_place(entry):
    assert re.match(r"(Abstract|Section|Appendix|Table|Figure|Reference|AI summary|J\.\d)", entry.printed)


@every_entry
def test_its_checks_have_what_the_entry_does_not_repeat(entry, evidence):
    for id in entry.rows:
        assert evidence[id].verdict == VERDICT_OF[id]
        if entry.consequence != "bibliography":
            assert evidence[id].counterexample
            assert evidence[id].correction
    if entry.consequence != "bibliography":
        assert any(evidence[id].practice for id in entry.rows)


def test_nothing_is_called_the_smallest(evidence):
    for id, found in evidence.items():
        assert "smallest" not in (found.counterexample or "").lower(), id


def test_the_page_has_every_entry_with_its_evidence(claims, evidence):
    page = errata_page(claims)
    html, text = page._repr_html_(), str(page)
    assert re.findall(r'id="erratum-([^"]+)"', html) == [anchor(e.rows[0]) for e in ERRATA]
    assert html.count("<h4>") == html.count("</section>") == len(ERRATA)
    assert re.findall(r"<h3>(.*?)</h3>", html) == [
        text for key, text in CONSEQUENCES.items() if any(e.consequence == key for e in ERRATA)
    ]
    judged = sum(e.consequence != "bibliography" for e in ERRATA)
    always = ("Where", "Printed", "Why it cannot be right", "Charitable reading", "Reproduce")
    for label in always:
        assert html.count(f"<dt>{label}</dt>") == len(ERRATA)
    for label in ("Corrected", "A counterexample", "Error as printed", "In practice"):
        assert judged <= html.count(f"<dt>{label}</dt>") <= len(ERRATA)
    for id in LISTED:
        assert html.count(f'href="{address(id)}"') == 1
        assert f"<code>python -m kl_book claims {id}</code>" in html
        assert letters(evidence[id].counterexample or "") in text
        assert letters(evidence[id].correction) in text
    assert "\\" not in text
    assert "$" not in text
    assert all(letters(f"{NAMES[entry.source]}: {entry.title}") in text for entry in ERRATA)


def test_what_several_rows_say_is_said_once(claims, evidence):
    html = errata_page(claims)._repr_html_()
    said = typeset(evidence["EMA-abstract-topk"].correction)
    assert said == typeset(evidence["EMA-fig2"].correction)
    assert html.count(said) == 1


def test_one_source_alone(claims):
    rows = claims[claims["id"].str.startswith("WZ-")]
    page = errata_page(rows, "wang2025choosing")
    assert {e.erratum.source for e in page.entries} == {"wang2025choosing"}
    assert [e.erratum for e in page.entries] == [e for e in ERRATA if e.source == "wang2025choosing"]
    assert list(page.by_consequence()) == list(dict.fromkeys(e.erratum.consequence for e in page.entries))
    assert NAMES["wang2025choosing"].replace("&", "&amp;") in page._repr_html_()


def test_conditions_are_shown_with_their_place_and_a_case_outside():
    row = {
        **{"id": "TM-eq1", "source": "tang2025pitfalls", "location": "2.1", "statement": "a < b"},
        **{"verdict": "holds only if", "condition": r"$\rho$ is small", "given": "stated in 3"},
        "counterexample": "x",
    }
    frame = pd.DataFrame([row, {**row, "id": "TM-eq2", "verdict": "holds"}])
    page = conditions_page(frame)
    assert [r["id"] for r in page.rows] == ["TM-eq1"]
    html = page._repr_html_()
    assert r"\(\rho\) is small" in html
    assert all(text in html for text in ("a &lt; b", "stated in 3", "<dd>x</dd>", "Tang &amp; Munos"))
    assert "ρ is small" in str(page)


def test_text_is_escaped(claims):
    html = errata_page(claims.assign(location="<b>", counterexample="a < b & \\pi"))._repr_html_()
    assert "<b>" not in html
    assert "a &lt; b &amp; π" in html
    assert "y_{&lt;t}" in html


@pytest.mark.parametrize(
    ("change", "source", "message"),
    [
        (lambda c: c.drop(columns="correction"), None, "no column 'correction', expected id"),
        (lambda c: c[c["id"] != "EMA-eq27"], None, "no row 'EMA-eq27', which an erratum names"),
        (lambda c: c.iloc[:0], "wang2025choosing", "no row 'WZ-"),
        (lambda c: c, "wang", "unknown source 'wang'"),
    ],
)
def test_bad_tables(claims, change, source, message):
    with pytest.raises(ValueError, match=message):
        errata_page(change(claims), source)
