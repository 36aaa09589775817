"""What a line keeps together, on small pieces; tests/site has a browser look at the pages."""

from __future__ import annotations

import pytest

from tests.support.advice import BOOK, markdown
from tests.support.extensions import extension

lines = extension("kl_lines")
F = r'<span class="math notranslate nohighlight">\(a\)</span>'


@pytest.mark.parametrize(
    ("text", "better"),
    [
        (f"<p>of {F}, and</p>", f'<p>of <span class="kl-held">{F},</span> and</p>'),
        (f"<p>({F}); {F}</p>", f'<p><span class="kl-held">({F});</span> {F}</p>'),
        (f"<p>{F} and ({F} b)</p>", f"<p>{F} and ({F} b)</p>"),
        ("<td>12 % of 3 %</td>", "<td>12&#160;% of 3&#160;%</td>"),
        ("<p>a % b</p>", "<p>a % b</p>"),
        ("<pre>7 % 2</pre>1 %<code>3 % 2</code>4 %", "<pre>7 % 2</pre>1&#160;%<code>3 % 2</code>4&#160;%"),
        (
            '<code><span class="pre">--a-b</span> <span class="pre">c</span></code>',
            '<code><span class="pre kl-word">--a-b</span> <span class="pre">c</span></code>',
        ),
        (f"<script>{F}, 7 % 2</script>", f"<script>{F}, 7 % 2</script>"),
    ],
)
def test_what_a_line_keeps_together(text: str, better: str) -> None:
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
