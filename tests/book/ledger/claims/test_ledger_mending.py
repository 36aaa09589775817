"""A statement that was read wrongly is mended in two files; verdict, page, contents and chapter follow."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
CLAIMS = Path("book/kl_book/ledger/claims")
SHOWN = """
import json
from kl_book import tables
from kl_book.ledger.claims import register, run
from kl_book.ledger.claims.listing import Contents, statements_of
id = "TM-eq3"
claims = tables.load("claims")
evidence, row = run(id), register()[id]
claims.loc[claims.id == id, ["statement", "verdict", "note"]] = row.statement, evidence.verdict, evidence.note
pages = statements_of("tang2025pitfalls", claims)._repr_html_(), Contents(claims)._repr_html_()
print(json.dumps([evidence.verdict, evidence.note, *pages]))
"""


def shown(folder):
    """Verdict and note of the row, the page of its paper and the contents, from the sources in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", SHOWN],
        cwd=folder,
        env={"PYTHONPATH": f"{folder / 'book'}:{ROOT}", "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_row_and_its_check_are_all_that_changes(tmp_path):
    shutil.copytree(ROOT / "book/kl_book", tmp_path / "book/kl_book")
    shutil.copytree(ROOT / "tables/claims", tmp_path / "tables/claims")
    (tmp_path / "_toc.yml").touch()  # which marks the root of a book
    (tmp_path / "book/experiments").mkdir()
    shutil.copy(ROOT / "book/experiments/claims.ipynb", tmp_path / "book/experiments")
    words = tmp_path / CLAIMS / "rows/tang2025pitfalls.yml"
    check = tmp_path / CLAIMS / "tang2025pitfalls/gradients.py"
    text, code = words.read_text(encoding="utf-8"), check.read_text(encoding="utf-8")
    row = text[text.index("  TM-eq3:\n") :].split("\n  TM-", 1)[0]
    statement = next(line for line in row.splitlines() if line.startswith("    statement: "))
    mended = "    statement: K3 as a loss moves forward\n    note: 'Tried in {{cases}} worlds.'"
    words.write_text(text.replace(row, row.replace(statement, mended)), encoding="utf-8")
    own = code[code.index('@claim("TM-eq3"') :].split("\n\n\n", 1)[0]
    check.write_text(code.replace(own, f"{own}\n    yield numbers(cases=13)"), encoding="utf-8")
    if "import numbers" not in code and " numbers" not in code.partition("@claim")[0]:
        imports = "from kl_book.ledger.claims.comparisons import numbers\n"
        after = check.read_text(encoding="utf-8")
        check.write_text(after.replace("import torch\n", f"import torch\n\n{imports}", 1), encoding="utf-8")
    verdict, note, page, contents = shown(tmp_path)
    assert (verdict, note) == ("holds", "Tried in 13 worlds.")
    assert "K3 as a loss moves forward" in page
    assert "Tried in 13 worlds." in page
    assert "K3 as a loss moves forward" in contents
