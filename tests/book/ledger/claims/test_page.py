"""What a chapter says of the statements on its subject: how many of which papers, and how many fail."""

import json
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest

from kl_book.ledger.claims import FAILING, register
from kl_book.ledger.claims.page import source_statements
from kl_book.ledger.claims.standard import NAMES
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


def test_the_line_counts_papers_and_what_fails(said):
    papers = dict.fromkeys(row.source for row in ROWS)
    parts = [f"{NAMES[s]} ({sum(row.source == s for row in ROWS)})" for s in papers]
    line = f"{len(ROWS)} statements of the papers on this subject were checked here: {', '.join(parts)}; "
    verdicts = [VERDICT_OF[id] for id in said.failing]
    each = ", ".join(f"{v}: {verdicts.count(v)}" for v in FAILING)
    assert str(said) == f"{line}{each} (one case decides)."
    assert escape(str(said)) in said._repr_html_()
    assert f'href="../ledger.html#chapter={CHAPTER}"' in said._repr_html_()


def test_one_that_fails_is_named_by_its_verdict():
    said = source_statements("part4_vocabulary/01_unbiased")
    (row,) = said.failing.values()
    assert str(said).endswith(f"; {row['verdict']}: 1 (one case decides).")


def test_a_chapter_without_failing_statements_says_so():
    said = source_statements("part8_language_models/03_distillation")
    assert not said.failing
    assert str(said).startswith("2 statements of the papers")
    assert str(said).endswith("; none is found wrong.")


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
