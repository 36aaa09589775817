"""Chapter and ledger never disagree: a chapter names a row, and the role prints the row's verdict."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

from kl_book.ledger.claims import register
from tests.support.claims_table import VERDICT_OF

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
sys.path.insert(0, str(BOOK / "_ext"))
import kl_verdict  # noqa: E402

CHAPTERS = sorted(BOOK.glob("part*/*.ipynb"))
ROLE = re.compile(r"\{verdict\}`([^`]*)`")
# verdicts that are typed in, in the words of the ledger or as a word that opens a sentence about a statement
TYPED = re.compile(
    r"\b(?:holds? (?:only if|with a condition|as (?:printed|worded))|(?:a|the) misprint\b|misprinted)"
    r"|(?<=[.!?)] )(?:True|False|Right|Wrong)(?=[,.:;])"
)
# a bullet that begins with the place of a statement
ABOUT_A_PLACE = re.compile(r"^\* \*\*(?:Figures?|Tables?|Sections?|Algorithms?) \d.*", re.MULTILINE)
ABOUT_PRINTED = re.compile(r"^#+ Corrections to ", re.MULTILINE)


def prose(path):
    """The Markdown cells of a notebook; code in them is left out."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    return [re.sub(r"```(?:python|bash|text).*?```", "", text, flags=re.DOTALL) for text in texts]


def typed_verdicts(text):
    """The verdict words of a text that no role printed."""
    return TYPED.findall(ROLE.sub("", text))


def silent_bullets(text):
    """Bullets of a section of corrections that name no row and do not say that they are about this book."""
    _, _, rest = text.partition(ABOUT_PRINTED.search(text)[0])
    section = re.split(r"^## ", rest, flags=re.MULTILINE)[0]
    bullets = re.split(r"^\* ", section, flags=re.MULTILINE)[1:]
    return [b for b in bullets if not ROLE.search(b) and "not of the sources" not in b]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda p: p.stem)
def test_a_chapter_types_no_verdict_and_names_rows_that_exist(chapter):
    for text in prose(chapter):
        assert typed_verdicts(text) == []
        assert {id for id in ROLE.findall(text) if id not in register()} == set()
        if ABOUT_PRINTED.search(text):
            assert silent_bullets(text) == []
        assert [b for b in ABOUT_A_PLACE.findall(text) if not ROLE.search(b)] == []


def test_what_is_looked_for_is_found():
    assert typed_verdicts("Their equation (4). True, and more.") == ["True"]
    assert typed_verdicts("Table 1 holds as printed.") == ["holds as printed"]
    assert typed_verdicts("It is ({verdict}`TM-eq2`). True positives hold.") == []
    assert silent_bullets("## Corrections to A\n\n* one\n* two {verdict}`TM-eq2`\n\n## Next\n\n* three") == [
        "one\n"
    ]


def test_the_role_prints_the_table(tmp_path, monkeypatch):
    with kl_verdict.TABLE.open(encoding="utf-8") as lines:
        table = {row["id"]: row["verdict"] for row in csv.DictReader(lines)}
    assert kl_verdict.verdicts() == table == VERDICT_OF


def test_the_role_in_a_page(tmp_path):
    from docutils import nodes
    from docutils.utils import new_document

    class Inliner:
        reporter = new_document("x").reporter

        def problematic(self, raw, *rest):
            return nodes.problematic(raw, raw)

    class Env:
        docname = "book/part1_values_and_gradients/01_measuring_kl"

        def note_dependency(self, path):
            self.noted = path

    role = kl_verdict.Verdict()
    role.inliner, role.lineno, role.rawtext = Inliner(), 1, "raw"
    Inliner.document = type("D", (), {"settings": type("S", (), {"env": Env()})})
    role.text = "TM-appA-c"
    (link,), messages = role.run()
    assert messages == []
    assert link.astext() == VERDICT_OF["TM-appA-c"] == "misprint"
    assert link["refuri"] == "../../book/ledger/tang2025pitfalls.html#claim-TM-appA-c"
    role.text = "WZ-var-small"
    assert VERDICT_OF[role.text] == "holds only if"
    assert role.run()[0][0].astext() == "holds with a condition"
    role.text = "TM-nothing"
    (bad,), (message,) = role.run()
    assert isinstance(bad, nodes.problematic)
    assert "no row 'TM-nothing'" in message.astext()
