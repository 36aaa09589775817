"""How blocks become a card: left out, closed up and cut where they are too high, colored, wrapped."""

import pytest

from kl_companion.auditing.judgment.card import CardBlock, CardLine, card, html, wrapped


class Told:
    """A verdict of blocks that the test says."""

    met, sentence = None, "it maximizes E[R]."

    def __init__(self, *sizes, spare=()):
        self.sizes, self.spare = sizes, dict(spare)

    def blocks(self, *, details=False):
        names = "abcdefgh"
        return [
            CardBlock([CardLine(f"{names[i]}{k}") for k in range(n)], self.spare.get(names[i], 0))
            for i, n in enumerate((*self.sizes, *([9] if details else [])))
        ]

    def to_dict(self):
        return {}


@pytest.mark.parametrize(
    ("verdict", "height", "lines"),
    [
        (Told(1, 2), 4, "a0||b0|b1"),
        (Told(1, 0, 2), 4, "a0||c0|c1"),  # an empty block leaves no gap
        (Told(1, 2), 3, "a0|b0|b1"),  # gaps go before lines do
        (Told(1, 1, 1, spare={"b": 2, "c": 1}), 3, "a0||b0"),
        (Told(1, 1, 1, spare={"b": 1, "c": 2}), 3, "a0||c0"),
        (Told(1, 1, 1, spare={"b": 1, "c": 2}), 1, "a0"),
        (Told(5), 3, "a0|a1|  ... (--details)"),
        (Told(2, 2), None, "a0|a1||b0|b1"),
    ],
)
def test_height(verdict, height, lines):
    assert card(verdict, height=height).split("\n") == lines.split("|")


def test_details_have_any_height_and_keep_what_is_spare():
    text = card(Told(1, spare={"a": 1}), details=True, height=2)
    assert text.split("\n") == ["a0", "", *(f"b{k}" for k in range(9))]


def test_color_and_style():
    class Inked(Told):
        def blocks(self, *, details=False):
            return [CardBlock([CardLine("x", "bold bad"), CardLine("y"), CardLine("z", "good")])]

    assert card(Inked(), color=True) == "\033[1;31mx\033[0m\ny\n\033[32mz\033[0m"
    assert card(Inked()) == "x\ny\nz"


def test_wrapped_lines():
    assert wrapped("") == []
    lines = wrapped("word " * 40, "    ", "  ", style="dim")
    assert [len(x.text) <= 80 for x in lines] == [True] * 3
    assert [x.text[: x.text.index("w")] for x in lines] == ["  ", "    ", "    "]
    assert {x.style for x in lines} == {"dim"}
    assert wrapped("word " * 40, most=2)[-1].text.endswith(" ...")


def test_html_is_escaped():
    class Markup(Told):
        def blocks(self, *, details=False):
            return [CardBlock([CardLine("a < b & c")])]

    assert html(Markup()) == '<pre class="kl-card">a &lt; b &amp; c</pre>'
