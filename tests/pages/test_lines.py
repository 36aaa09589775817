"""What a line keeps together, on small pieces; tests/site has a browser look at the pages."""

from __future__ import annotations

import pytest

from tests.support.advice import BOOK, markdown
from tests.support.data import data
from tests.support.extensions import extension

lines = extension("kl_lines")
F = r'<span class="math notranslate nohighlight">\(a\)</span>'


@pytest.mark.parametrize(("text", "better"), data(__file__))
def test_what_a_line_keeps_together(text: str, better: str) -> None:
    text, better = text.replace("{F}", F), better.replace("{F}", F)
    assert lines.held(text) == better
    assert lines.held(better) == better


def test_no_line_of_a_page_is_lost_as_a_comment() -> None:
    """Markdown of this book takes a line that begins with a percent sign for a comment."""
    lost = [
        f"{path.name}: {line}"
        for path in sorted([*BOOK.rglob("*.md"), *BOOK.rglob("*.ipynb")])
        for line in markdown(path).splitlines()
        if line.startswith("%")
    ]
    assert lost == []
