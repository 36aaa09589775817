"""A verdict on one screen: blocks of lines, of which those that are needed least go where it is too high."""

from __future__ import annotations

import html as escape
import textwrap
from typing import Any, NamedTuple, Protocol, runtime_checkable

WIDTH, HEIGHT = 80, 24
_COLORS = {"bold": "1", "good": "32", "bad": "31", "dim": "2"}


class CardLine(NamedTuple):
    """One line of a card.

    Attributes:
        text: At most `WIDTH` columns, but for a reader's own code.
        style: Words among ``bold``, ``good``, ``bad`` and ``dim``.
    """

    text: str
    style: str = ""


class CardBlock(NamedTuple):
    """Lines of a card that belong together.

    Attributes:
        lines: None of them for a block that is not printed.
        spare: 1 for the block that is left out first where a card is too high, then 2 and so on; 0 for one
            that stays.
    """

    lines: list[CardLine]
    spare: int = 0


@runtime_checkable
class AnyVerdict(Protocol):
    """The common part of an `Audit` and an `UpdateAudit`."""

    @property
    def met(self) -> bool | None:
        """Whether it is what was wanted; None where nothing was."""

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""

    def blocks(self, *, details: bool = False) -> list[CardBlock]:
        """Blocks of the card."""

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data."""


def card(
    verdict: AnyVerdict, *, details: bool = False, color: bool = False, height: int | None = HEIGHT
) -> str:
    """Return the verdict as text, at most 80 columns wide and, without details, 24 lines high.

    Args:
        verdict: An `Audit` or an `UpdateAudit`.
        details: Every number behind the verdict too.
        color: With escape sequences for a terminal.
        height: Lines at most, where details are left out; None for as many as there are.
    """
    blocks = [b for b in verdict.blocks(details=details) if b.lines]
    most = None if details else height
    for block in sorted((b for b in blocks if b.spare), key=lambda b: b.spare):
        if most is not None and _height(blocks) > most:
            blocks.remove(block)
    gap = [] if most is not None and _height(blocks) > most else [CardLine("")]
    lines = [line for i, block in enumerate(blocks) for line in (*(gap if i else []), *block.lines)]
    text = [_ink(line) if color else line.text for line in lines]
    if most is not None and len(text) > most:
        text = [*text[: most - 1], "  ... (--details)"]
    return "\n".join(text)


def html(verdict: AnyVerdict) -> str:
    """Return the card as HTML for a notebook."""
    return f'<pre class="kl-card">{escape.escape(card(verdict))}</pre>'


def wrapped(
    text: str, indent: str = "", first: str | None = None, most: int = 9, style: str = ""
) -> list[CardLine]:
    """Return a text as lines of a card; none of an empty text.

    Args:
        text: Any length.
        indent: In front of every line.
        first: In front of the first line, where that is another.
        most: Lines at most; the last ends in dots where there are more.
        style: See `CardLine`.
    """
    start = indent if first is None else first
    lines = textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 4]} ..."]
    return [CardLine(x, style) for x in lines]


def _height(blocks: list[CardBlock]) -> int:
    return sum(len(b.lines) + 1 for b in blocks) - 1


def _ink(line: CardLine) -> str:
    codes = ";".join(_COLORS[style] for style in line.style.split())
    return f"\033[{codes}m{line.text}\033[0m" if codes and line.text else line.text
