"""Registered objectives in words, as a page has them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kl_companion.auditing.judgment.words import in_words


def typeset(found: str | Mapping[str, float]) -> str:
    """`in_words` for a page: with a minus sign and ×, where a terminal has - and x."""
    return re.sub(r"(^| )- ", r"\1− ", in_words(found)).replace(" x ", " × ")


def gradient_words(objective: str) -> str:
    """Return the end of a sentence that says of which objective a term has the gradient.

    Args:
        objective: As `in_words`; ``"zero"``, or ``"other"`` for the gradient of no known objective.
    """
    if objective == "zero":
        return "has zero expected gradient"
    return f"has the gradient of {'no KL' if objective == 'other' else in_words(objective)}"
