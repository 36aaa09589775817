"""Statements as a chapter shows them: every row of its subject, and what is said against the failing ones."""

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from kl_book.ledger.claims import FAILING, register
from kl_book.ledger.claims.page import source_statements
from kl_book.ledger.claims.texts import plain
from tests.support.claims_table import VERDICT_OF
from tests.support.data import data

DATA = data(__file__)
CHAPTER = "part3_sequences/01_token_or_sequence"
ROWS = [r for r in register().values() if r.chapter == CHAPTER]


ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def said():
    return source_statements(CHAPTER)


def test_every_row_of_the_chapter_and_no_other(said):
    assert [row["id"] for row in said.rows] == [r.id for r in ROWS]


def test_what_fails_is_told_apart(said):
    failing = {r.id for r in ROWS if VERDICT_OF[r.id] in FAILING}
    assert set(said.failing) == failing
    assert 0 < len(failing) < len(ROWS)


@pytest.mark.parametrize("how", [str, lambda x: x._repr_html_()], ids=["text", "html"])
def test_a_failing_row_is_shown_with_its_counterexample(said, how):
    text = unescape(how(said))
    assert 0 < text.count("Counterexample") <= len(said.failing)
    for row in said.rows:
        assert plain(row["statement"])[:30] in text
        assert row["id"] in text
        assert row["verdict"] in text.lower()


def test_the_page_counts(said):
    html = said._repr_html_()
    assert f"{len(ROWS)} statements of the papers" in html
    assert f"{len(said.failing)} do not hold" in html
    assert f"<summary>The other {len(ROWS) - len(said.failing)} statements" in html
    assert html.count("<details>") == html.count("</details>") == 2  # the failing ones are folded too
    assert html.count("<p><b>") == len(said.failing)
    assert html.count("<li>") == len(ROWS) - len(said.failing)


def test_one_that_fails_is_counted_in_the_singular():
    said = source_statements("part4_vocabulary/01_unbiased")
    assert len(said.failing) == 1
    html = said._repr_html_()
    assert "; 1 does not hold as printed.</p>" in html
    assert "<summary>The one that does not hold as printed</summary>" in html


def test_a_chapter_without_failing_statements_counts_none():
    said = source_statements("part8_language_models/03_distillation")
    assert not said.failing
    assert len(said.rows) == 2
    html = said._repr_html_()
    assert "2 statements of the papers, in our words; none is found wrong.</p>" in html
    assert html.count("<summary>") == html.count("<summary>The statements</summary>") == 1


def test_what_is_said_against_several_statements_is_said_once():
    said = source_statements("part1_values_and_gradients/05_off_policy")
    html = said._repr_html_()
    columns = ("verdict", "condition", "given", "correction", "counterexample")
    distinct = {tuple(row[name] for name in columns) for row in said.failing.values()}
    assert html.count("<section>") == html.count("Counterexample") == len(distinct) < len(said.failing)
    assert r"\(\E_\mu[\rho^2 (s \cdot u)^2 (2 k_1 + 1)] \ge 0\)" in html
    assert "E_μ[ρ^2 (s · u)^2 (2 k_1 + 1)] ≥ 0" in str(said)


def test_text_of_a_row_is_escaped(said):
    assert "y_&lt;t" in said._repr_html_()


def test_no_command_is_left_in_a_statement():
    shown = [re.sub(r"m in \{0,1\}", "", plain(r.statement)) for r in register().values()]
    assert [text for text in shown if re.search(r"[{}\\\x00]|_\)", text)] == []


@pytest.mark.parametrize(("latex", "wanted"), DATA["letters"])
def test_latex_in_letters(latex, wanted):
    assert plain(latex) == wanted


def test_no_check_is_loaded_for_a_chapter():
    code = (
        "import sys; from kl_book.ledger.claims.page import source_statements; "
        f"source_statements({CHAPTER!r}); "
        "print(*(m for m in sys.modules if m.startswith('kl_book.ledger.claims.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = {name.removeprefix("kl_book.ledger.claims.") for name in done.stdout.split()}
    assert modules == {"page", "standard", "texts"}


def test_a_chapter_depends_on_the_table_and_not_on_the_checks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    import kl_cache

    shutil.copytree(ROOT / "book/kl_book", tmp_path / "book/kl_book")
    (tmp_path / "kl_companion").mkdir()
    for name in ("__init__.py", "checks.py", "lazy.py"):
        if (ROOT / "kl_companion" / name).is_file():
            shutil.copy(ROOT / "kl_companion" / name, tmp_path / "kl_companion" / name)
    for name in ("claims", "value_mse"):
        shutil.copytree(ROOT / "tables" / name, tmp_path / "tables" / name)
    monkeypatch.setattr(kl_cache, "ROOT", tmp_path)
    cell = f"from kl_book.ledger.claims.page import source_statements\nsource_statements({CHAPTER!r})"
    chapter = json.dumps({"cells": [{"cell_type": "code", "source": cell}]})
    other = json.dumps({"cells": [{"cell_type": "code", "source": "import kl_companion.checks"}]})

    def changes(file):
        before = kl_cache.digest(chapter), kl_cache.digest(other)
        path = tmp_path / file
        path.write_text(path.read_text() + "\n")
        return tuple(
            a != b for a, b in zip(before, (kl_cache.digest(chapter), kl_cache.digest(other)), strict=True)
        )

    claims = "book/kl_book/ledger/claims"
    assert changes("tables/claims/table.csv") == (True, False)
    assert changes(f"{claims}/page.py") == (True, False)
    assert changes("tables/value_mse/table.csv") == (False, False)
    for file in ("ledger.py", "ground/sums.py", "tang2025pitfalls/gradients.py"):
        assert changes(f"{claims}/{file}") == (False, False)
