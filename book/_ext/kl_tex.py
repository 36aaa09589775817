"""Short formulas and inline markup as HTML without MathJax, for cards, links and search results.

A card is shown in an instant and read out as one sentence, so its formulas are letters with HTML's own
subscripts. What a page typesets stays with MathJax.
"""

from __future__ import annotations

import re
from html import escape

from docutils import nodes

from kl_book.ledger.claims.texts import GROUP, LETTERS

FUNCTIONS = ("log", "exp", "min", "max", "sqrt", "tanh")
DROPPED = re.compile(
    r"\\(left|right|bigl|bigr|Bigl|Bigr|big|Big|displaystyle|quad|qquad|[,;:! ])(?![a-zA-Z])"
)


def tex_to_html(tex: str) -> str:
    r"""The HTML of a short formula: ``\pref(y)/\pi(y)`` becomes π<sub>ref</sub>(y)/π(y).

    Raises:
        ValueError: a macro that this function does not know; a longer formula belongs to MathJax.
    """
    text = escape(tex.strip(), quote=False).replace(r"\|", "‖")
    text = text.replace(r"\pref", r"\pi_{ref}").replace(r"\{", "❴").replace(r"\}", "❵")
    text = DROPPED.sub(lambda m: " " if "quad" in m[0] or m[1] == " " else "", text)
    for _ in range(4):  # groups inside groups
        text = re.sub(rf"\\KL{GROUP}{GROUP}", r"KL(\1 ‖ \2)", text)
        text = re.sub(rf"\\D{GROUP}{GROUP}{GROUP}", r"D_{\1}(\2 ‖ \3)", text)
        text = re.sub(r"\\[td]?frac12(?!\d)", "½", text)
        text = re.sub(rf"\\[td]?frac{GROUP}{GROUP}", _fraction, text)
        text = re.sub(rf"\\(?:mathrm|mathbb|mathcal|text|operatorname|widehat|hat|tilde){GROUP}", r"\1", text)
        text = re.sub(rf"\\sqrt{GROUP}", r"√(\1)", text)
    text = re.sub(rf"\\({'|'.join(FUNCTIONS)})(?![a-zA-Z])", r"\1", text)
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: LETTERS.get(m[1], m[0]), text)
    for mark, tag in (("_", "sub"), ("\\^", "sup")):
        text = re.sub(rf"{mark}(?:{GROUP}|([^\s{{}}]))", lambda m, t=tag: f"<{t}>{m[1] or m[2]}</{t}>", text)
    text = text.replace("❴", "{").replace("❵", "}").replace("-", "−")
    if "\\" in text or re.search(r"(?<!\\)\$", text):
        raise ValueError(f"got the formula {tex!r}, wanted one of letters, ratios, sub- and superscripts")
    return re.sub(r"\s+", " ", text).strip()


def _fraction(found: re.Match[str]) -> str:
    """A ratio on one line, with brackets around what is more than a letter."""
    if found.groups() == ("1", "2"):
        return "½"
    return "/".join(part if re.fullmatch(r"\\?\w+", part) else f"({part})" for part in found.groups())


def inline_html(node: nodes.Element) -> str:
    """Content of a paragraph as HTML of its own: text, emphasis, code and formulas; a link keeps its text.

    A formula that is too rich for letters stands as its TeX without backslashes; no page needs that.
    """
    found = []
    for child in node.children:
        if isinstance(child, nodes.Text):
            found.append(escape(child.astext(), quote=False))
        elif isinstance(child, nodes.math):
            try:
                found.append(f"<i>{tex_to_html(child.astext())}</i>")
            except ValueError:
                found.append(escape(re.sub(r"[\\{}$]", "", child.astext()), quote=False))
        elif isinstance(child, nodes.literal):
            found.append(f"<code>{escape(child.astext(), quote=False)}</code>")
        elif isinstance(child, nodes.emphasis):
            found.append(f"<em>{inline_html(child)}</em>")
        elif isinstance(child, nodes.Element):
            found.append(inline_html(child))
    return "".join(found)
