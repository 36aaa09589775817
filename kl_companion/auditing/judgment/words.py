"""Registered names as a reader sees them: for pages, tables and the explorer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.divergences import DIVERGENCES

_NAME = re.compile(r"[a-z]\w*(?:\([^()]*\))?")


def divergence_words(name: str) -> str:
    """A registered divergence: ``"pearson"`` is Pearson chi-squared divergence."""
    return OBJECTIVES[f"token_{name}"].short.partition(",")[0]


def objective_words(name: str) -> str:
    """A registered objective in a few words; a divergence, and every other text, as well.

    Args:
        name: ``"token_reverse_kl"``: reverse KL, next token.
    """
    try:
        return OBJECTIVES[name].short
    except KeyError:
        return divergence_words(name) if name in DIVERGENCES else name


def signed_sum(terms: Iterable[tuple[float, str]]) -> str:
    """Return coefficients and texts as a sum: ``reverse KL, next token - 0.5 x entropy, next token``."""
    each = []
    for coefficient, text in terms:
        size = f"{abs(coefficient):.4g}"
        each.append(f"{'-' if coefficient < 0 else '+'} {'' if size == '1' else f'{size} x '}{text}")
    return " ".join(each).removeprefix("+ ")


def in_words(found: str | Mapping[str, float]) -> str:
    """A sum of registered names, as a table of the package holds it, in a reader's words.

    Args:
        found: ``"1 token_reverse_kl - 2 token_entropy"``, or the same as ``{name: coefficient}``: reverse KL,
            next token - 2 x entropy, next token.
    """
    if isinstance(found, Mapping):
        return signed_sum((c, objective_words(n)) for n, c in found.items())
    text = re.sub(r"(?<![\w./])1 (?=[a-z])", "", found)
    text = re.sub(r"(?<![\w(])(\d[\d./]*) (?=[a-z]\w*_)", r"\1 x ", text)
    return _NAME.sub(lambda m: objective_words(m.group()), text)
