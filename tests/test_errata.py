"""The errata: every failing row in one entry, texts that a reader can use, and the page that shows them."""

import re
from html import escape
from itertools import pairwise

import pandas as pd
import pytest

from kl_companion.claims import register, run
from kl_companion.claims.errata import ERRATA, Erratum
from kl_companion.claims.errata.erratum import checked
from kl_companion.claims.errata.page import COLUMNS, errata_page
from kl_companion.claims.page import NAMES, anchor, letters
from tests.expected_claims import EXPECTED

TEXTS = ("title", "printed", "why", "charitable")
CORRECTED = ("misprint", "false as printed")
LISTED = [id for entry in ERRATA for id in entry.rows]
FORBIDDEN = (
    *("obviously", "clearly", "of course", "trivially", "sloppy", "careless", "embarrass", "nonsense"),
    *("wrongly claim", "falsely", "mislead", "the authors fail", "the authors forgot", "unfortunately", "!"),
)
every_entry = pytest.mark.parametrize("entry", ERRATA, ids=lambda e: e.rows[0])


@pytest.fixture(scope="module")
def evidence():
    return {id: run(id) for id in LISTED}


@pytest.fixture(scope="module")
def claims(evidence):
    rows = [
        (id, register()[id].location, e.verdict, e.correction or None, e.counterexample)
        for id, e in evidence.items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_every_failing_row_is_in_one_entry_and_no_other_row():
    failing = [id for id in register() if EXPECTED[id] in CORRECTED]
    assert sorted(LISTED) == sorted(failing)


@every_entry
def test_rows_share_a_source(entry):
    assert {register()[id].source for id in entry.rows} == {entry.source}


def test_entries_are_in_the_order_of_the_register():
    places = [list(register()).index(entry.rows[0]) for entry in ERRATA]
    assert all(a < b for a, b in pairwise(places))


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
        assert evidence[id].verdict == EXPECTED[id]
        assert evidence[id].counterexample
        assert evidence[id].correction


def test_the_page_has_every_entry_with_its_evidence(claims, evidence):
    page = errata_page(claims)
    html, text = page._repr_html_(), str(page)
    assert re.findall(r'id="erratum-([^"]+)"', html) == [anchor(e.rows[0]) for e in ERRATA]
    assert html.count("<h4>") == html.count("</section>") == len(ERRATA)
    assert html.count("<h3>") == len({e.source for e in ERRATA})
    for label in (
        "Where",
        "Printed",
        "Why it cannot be right",
        "Corrected",
        "Charitable reading",
        "Reproduce",
    ):
        assert html.count(f"<dt>{label}</dt>") == len(ERRATA)
    for id in LISTED:
        assert html.count(f'href="ledger.html#{anchor(id)}"') == 1
        assert f"<code>kl-companion claims {id}</code>" in html
        assert letters(evidence[id].counterexample) in text
        assert letters(evidence[id].correction) in text
    assert "\\" not in text
    assert all(entry.title in text for entry in ERRATA)


def test_what_several_rows_say_is_said_once(claims, evidence):
    html = errata_page(claims)._repr_html_()
    said = letters(evidence["EMA-abstract-topk"].correction)
    assert said == letters(evidence["EMA-fig2"].correction)
    assert html.count(f"<li>{escape(said)}</li>") == 1


def test_one_source_alone(claims):
    rows = claims[claims["id"].str.startswith("WZ-")]
    page = errata_page(rows, "wang2025choosing")
    assert [e.erratum.rows[0] for e in page.entries] == ["WZ-5-requires", "WZ-refs"]
    assert list(page.by_source()) == ["wang2025choosing"]
    assert NAMES["wang2025choosing"].replace("&", "&amp;") in page._repr_html_()
    assert errata_page(claims, "shah2025comedy").entries == ()


def test_text_is_escaped(claims):
    html = errata_page(claims.assign(location="<b>", counterexample="a < b & \\pi"))._repr_html_()
    assert "<b>" not in html
    assert "a &lt; b &amp; π" in html
    assert "y_&lt;t" in html


@pytest.mark.parametrize(
    ("change", "source", "message"),
    [
        (lambda c: c.drop(columns="correction"), None, "no column 'correction', expected id"),
        (lambda c: c[c["id"] != "EMA-eq27"], None, "no row 'EMA-eq27', which an erratum names"),
        (lambda c: c.iloc[:0], "wang2025choosing", "no row 'WZ-5-requires'"),
        (lambda c: c, "wang", "unknown source 'wang'"),
    ],
)
def test_bad_tables(claims, change, source, message):
    with pytest.raises(ValueError, match=message):
        errata_page(change(claims), source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"why": " "}, "has no text 'why'"),
        ({"rows": ()}, "has no row, expected"),
        ({"rows": ("TM-nothing",)}, "unknown row 'TM-nothing'"),
        ({"rows": ("TM-appA-c", "AI-1")}, "rows of summary2025pitfalls and tang2025pitfalls"),
        ({"rows": ("TM-appA-c", "TM-2.2-sign")}, "not in the register's order"),
    ],
)
def test_bad_entries(change, message):
    entry = Erratum("a title", ("TM-appA-c",), "printed", "why", "charitable")
    assert checked([entry]) == (entry,)
    with pytest.raises(ValueError, match=message):
        checked([entry._replace(**change)])


def test_bad_sequences():
    with pytest.raises(ValueError, match=r"row 'TM-2\.1-control-variate' stands in two errata"):
        checked([ERRATA[0], ERRATA[0]])
    with pytest.raises(ValueError, match=r"comes after .*, unlike in the register"):
        checked([ERRATA[1], ERRATA[0]])
