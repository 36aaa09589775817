"""What an update is meant to maximize, as a text: ``"E[R] - beta * sequence_reverse_kl"``."""

from __future__ import annotations

import re
from typing import NamedTuple

from kl_companion.auditing.worlds.targets import split_want, wanted_objectives

_FORM = re.compile(r"\s*E\[\s*[Rr]\s*\]\s*(?:-\s*(?:([\w.+-]+?)\s*\*\s*)?([A-Za-z_]\w*)\s*)?")


class Wanted(NamedTuple):
    """E[R] - beta x a divergence from the reference.

    Attributes:
        text: As it was asked for.
        objectives: Names of objectives that the divergence may be; empty for none.
        beta: Its coefficient; None for the step's own.
    """

    text: str
    objectives: frozenset[str]
    beta: float | None


def wanted_of(text: str) -> Wanted:
    """Read ``"E[R] - 0.04 * sequence_reverse_kl"``; ``beta``, or no factor, is the step's own coefficient.

    Raises:
        ValueError: a text of another form, an unknown divergence, or a coefficient below 0.
    """
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError(
            f"want is {text!r}, expected 'E[R]' or 'E[R] - beta * sequence_reverse_kl', with beta or "
            "a number, and a divergence of tokens or sequences"
        )
    factor, name = found.groups()
    if name is None:
        return Wanted(text, frozenset(), 0.0)
    beta = None
    if factor not in (None, "beta"):
        try:
            beta = float(factor)
        except ValueError as error:
            raise ValueError(f"want has the coefficient {factor!r}, expected beta or a number") from error
        if not beta >= 0:
            raise ValueError(f"want has the coefficient {factor}, expected one that is not negative")
    split_want(name)  # an update is judged on fresh samples, where no distance to the sampler acts
    return Wanted(text, frozenset(wanted_objectives(name)), beta)
