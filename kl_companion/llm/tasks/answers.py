"""Find the answer that a solution states, and compare it with the right one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kl_companion.checks import check_choice
from kl_companion.llm.tasks.base import Example
from kl_companion.llm.tasks.canonical import boxed, canonical

Style = Literal["gsm8k", "math", "last_number", "boxed"]
STYLES: tuple[Style, ...] = ("gsm8k", "math", "last_number", "boxed")

UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
LAST_NUMBER = re.compile(rf"(?<![0-9A-Za-z_.])[-−+]?[$£€]?(?:{UNSIGNED})(?:\s?/\s?[0-9]+)?")
ANSWER_IS = re.compile(r"answer\s*(?:is\s*:?|[:=])[\s*]*", re.IGNORECASE)


def extract_answer(text: str, style: Style) -> str | None:
    r"""The answer that a solution states, as written; None where it states none.

    Args:
        text: A solution.
        style: ``"gsm8k"``: the rest of the line after the last ``####``. ``"boxed"``: the content of the
            last ``\boxed`` or ``\fbox``. ``"math"``: that, else what follows the last "answer is" or
            "answer:" up to the end of the sentence. ``"last_number"``: the last number.

    Raises:
        ValueError: unknown style.
    """
    check_choice("style", style, STYLES)
    found: str | None
    if style == "gsm8k":
        _, mark, rest = text.rpartition("####")
        found = rest.strip().split("\n")[0] if mark else None
    elif style == "last_number":
        numbers = list(LAST_NUMBER.finditer(text))
        found = numbers[-1][0] if numbers else None
    else:
        found = boxed(text)
        if found is None and style == "math":
            found = _stated(text)
    return (found.strip() or None) if found is not None else None


def _stated(text: str) -> str | None:
    matches = list(ANSWER_IS.finditer(text))
    if not matches:
        return None
    rest = text[matches[-1].end() :].split("\n")[0]
    return re.split(r"\.(?:\s|$)", rest)[0].rstrip("*")


def same_answer(a: str, b: str) -> bool:
    """Whether two answers say the same; an answer that says nothing is the same as none, not even itself.

    See `canonical` for what counts as the same.
    """
    left = canonical(a)
    return left is not None and left == canonical(b)


@dataclass
class Checker:
    """A reward: 1.0 if the answer that a completion states is the example's, else 0.0.

    Attributes:
        style: How the answer is found, see `extract_answer`.
        seen: Completions judged so far.
        unread: Those among them that state no answer; they earn 0.0.
    """

    style: Style
    seen: int = 0
    unread: int = 0

    def __post_init__(self) -> None:
        check_choice("style", self.style, STYLES)

    def __call__(self, text: str, example: Example) -> float:
        """The reward of a completion."""
        self.seen += 1
        found = extract_answer(text, self.style)
        if found is None or canonical(found) is None:
            self.unread += 1
            return 0.0
        return float(same_answer(found, example.answer))
