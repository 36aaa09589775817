"""The concordance by hand on small cases: order by date, what is refused, verdicts and links as shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd

from kl_book.ledger.claims.page import anchor
from kl_book.ledger.claims.standard import VERDICTS
from kl_book.ledger.concordance import PlaceInBook, Result, concordance, places, result
from kl_book.ledger.concordance_works import OUTSIDE

# February, June and December 2025, February 2026, and 2026 without a month
VY, TM, WZ, EMA, ZCPO = "VY-2.2-reverse", "TM-eq3", "WZ-naive-k3", "EMA-eq81", "ZCPO-F6-k3grad"
CLAIMS = pd.DataFrame({"id": [TM, WZ, EMA], "verdict": ["holds", "misprint", "false as printed"]})
LABELS = {"prop-a": PlaceInBook("part1/01_a", "A < B")}


def works(made: Result) -> list[str]:
    return [mention.work for mention in made.mentions]


def shown(made: Result) -> str:
    return concordance([made], CLAIMS, LABELS)._repr_html_()


def test_mentions_are_in_the_order_of_their_dates_however_they_are_named() -> None:
    made = result("gradients", "K3.", states=f"{ZCPO} {EMA} schulman2020 {TM} {WZ} {VY}")
    assert works(made) == [
        *("schulman2020", "vojnovic2025alignment", "tang2025pitfalls", "wang2025choosing"),
        *("emapg2026", "ding2026misfires"),
    ]
    assert [m.work for m in made.first] == ["schulman2020"]


def test_first_is_the_first_that_states_or_corrects_and_not_one_that_anticipates() -> None:
    made = result("gradients", "K3.", states=EMA, corrects=WZ, anticipates=VY, contradicts=TM)
    assert [m.work for m in made.first] == ["wang2025choosing"]
    assert works(made)[0] == "vojnovic2025alignment"
    assert not made.own


def test_works_of_one_month_are_both_first() -> None:
    made = result("gradients", "K1.", states="WZ-naive-k1 SH-K1-path FRPO-B1-k1grad")
    assert {m.work for m in made.first} == {"wang2025choosing", "shah2025comedy"}


def test_rows_of_one_work_with_one_relation_are_one_mention() -> None:
    made = result("values", "K1.", states="TM-2.1-vanilla TM-2.1-varreduced", contradicts="TM-6-unique")
    assert [(m.relation, m.rows) for m in made.mentions] == [
        ("states", ("TM-2.1-vanilla", "TM-2.1-varreduced")),
        ("contradicts", ("TM-6-unique",)),
    ]


def test_what_nobody_states_is_the_books_own() -> None:
    made = result("values", "Ours.", "prop-a", anticipates=WZ, contradicts=TM)
    assert made.own
    assert made.first == []
    assert '<td data-head="First stated by">this book</td>' in shown(made)


def test_verdicts_are_those_of_the_table_and_a_row_that_it_lacks_is_not_examined_yet() -> None:
    text = shown(result("gradients", "K3.", "prop-a", states=f"{VY} {TM} {WZ}"))
    for id, verdict in {VY: VERDICTS[-1], TM: "holds", WZ: "misprint"}.items():
        assert f'<a href="ledger.html#{anchor(id)}">{id}</a>: <i>{verdict}</i>' in text
    assert '<a href="part1/01_a.html#prop-a">A &lt; B</a>' in text


def test_the_first_column_names_the_first_and_the_second_the_others_with_their_relation() -> None:
    made = result("gradients", "K3.", states=f"{WZ} {TM}", contradicts=EMA)
    cells = re.split(r"<td data-head=[^>]*>", shown(made))[1:]
    assert cells[0].startswith("<b>Tang &amp; Munos</b> 2025-06, 3, eq (3), ")
    assert cells[1].startswith("states: <b>Wang &amp; Zhang</b> 2025-12")
    assert "contradicts: <b>EMA-PG</b> 2026-02" in cells[1]
    assert cells[2].startswith("not treated")


def test_a_work_outside_the_ledger_has_no_verdict() -> None:
    text = shown(result("values", "K1.", states="schulman2020"))
    assert '<a href="references.html"><b>Schulman</b></a> 2020, not in the ledger' in text
    assert OUTSIDE["schulman2020"].date == "2020"


def test_counts_and_groups() -> None:
    results = [
        result("values", "Two.", states=f"{TM} {WZ}"),
        result("values", "One work twice.", states="TM-2.1-vanilla", corrects="TM-2.1-varreduced"),
        result("gradients", "Ours.", "prop-a", contradicts=EMA),
    ]
    found = concordance(results, CLAIMS, LABELS)
    assert found.counts() == {"results": 3, "stated by several works": 1, "this book's own": 1}
    assert found.group("values").counts()["results"] == 2
    assert found.group("top-k")._repr_html_() == "<p>No result of this group.</p>"
    assert "2026-02 EMA-PG, contradicts: EMA-eq81: false as printed" in str(found)
    assert repr(found) == str(found)


def test_places_are_propositions_and_headings_of_chapters(tmp_path: Path) -> None:
    text = "(section-b)=\n## On $\\pi$\n\n```{prf:proposition} A title\n:label: prop-c\n\nSo.\n```\n"
    cells = [{"cell_type": "markdown", "source": text}, {"cell_type": "code", "source": "(x)=\n# y"}]
    (tmp_path / "part1").mkdir()
    (tmp_path / "part1" / "01_a.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert places(tmp_path) == {
        "prop-c": PlaceInBook("part1/01_a", "A title"),
        "section-b": PlaceInBook("part1/01_a", "On π"),
    }
