"""Written pages, whose lines break where a typesetter would break them.

A browser may break a line between a formula and the comma that follows, between a number and its percent
sign, and after the first hyphen of an option. This is done on the text of the pages (by kl_accessible.py):
captions and tables come from cells, not from sources.
"""

from __future__ import annotations

import re

# What a reader may copy, and what a browser reads: left as it is.
KEPT = re.compile(r"(<(pre|code|script|style|textarea|title)\b.*?</\2>)", re.S)
FORMULA = re.compile(
    r'(?P<open>[(\[]?)(?P<formula><span class="math notranslate nohighlight">[^<]*</span>)'
    r"(?P<mark>[.,;:!?)\]’”]+)"
)
PERCENT = re.compile(r"(?<=\d) (?=%)")
OPTION = re.compile(r'<span class="pre">(?=[^<]*-)(?=[^<]{2,40}</span>)')


def held(text: str) -> str:
    """The text of a page: a formula keeps its punctuation, a number its percent sign, an option its hyphens.

    Of a page that was held before, the same text.
    """
    if 'class="kl-held"' in text:
        return text
    pieces = KEPT.split(text)
    for at in range(0, len(pieces), 3):  # between them: what is kept, and the name of its tag
        piece = PERCENT.sub("&#160;", pieces[at])
        pieces[at] = FORMULA.sub(r'<span class="kl-held">\g<open>\g<formula>\g<mark></span>', piece)
        if at + 1 < len(pieces):
            pieces[at + 1] = OPTION.sub('<span class="pre kl-word">', pieces[at + 1])
            pieces[at + 2] = ""
    return "".join(pieces)
