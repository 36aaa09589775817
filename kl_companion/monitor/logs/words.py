"""Numbers, intervals and tokens as they stand in a sentence, and means that leave out what is not known."""

from __future__ import annotations

import math
import statistics
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:  # types only: the report of a log uses this module, and must not load torch
    from kl_companion.monitor.largest_tokens import LargeToken

LEAST_KL = 1e-4  # nats per token: below, near the first step, relative sizes say nothing
_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_LONGEST_TOKEN = 30  # characters of a token in a sentence


def is_finite(x: float | None) -> TypeGuard[float]:
    """Whether a number is known, and one to compute with."""
    return x is not None and math.isfinite(x)


def finite(series: Iterable[float | None]) -> list[float]:
    """The entries that are known and finite."""
    return [x for x in series if x is not None and math.isfinite(x)]


def mean(series: Iterable[float | None]) -> float | None:
    """Mean of the finite entries; None without one."""
    known = finite(series)
    return sum(known) / len(known) if known else None


def median(series: Iterable[float | None]) -> float | None:
    """The middle one of the finite entries, the upper of two; None without one."""
    known = finite(series)
    return statistics.median_high(known) if known else None


def number(x: float) -> str:
    """A number in two or three digits, without powers of ten while it can be read so: 0.031, 1.3 billion."""
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "infinity" if x > 0 else "−infinity"
    size = abs(x)
    if size >= 1e15 or 0 < size < 1e-5:
        mantissa, _, power = f"{size:.1e}".partition("e")
        text = f"{mantissa} × 10^{int(power)}".replace("^-", "^−")
    elif size >= 1e6:
        unit, word = next(pair for pair in _LARGE if size >= pair[0])
        text = f"{size / unit:.3g} {word}"
    elif size >= 100 or size == 0:
        text = f"{size:,.0f}"
    else:  # a third digit after a leading 1, which says less than a leading 9
        digits = (2 if f"{size:.1e}"[0] == "1" else 1) - math.floor(math.log10(size))
        text = f"{size:.{max(0, digits)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"−{text}" if x < 0 and text != "0" else text


def percent(share: float) -> str:
    """A share as a percentage: 31 %, 0.4 %."""
    hundred = 100 * share
    if 95 < hundred < 99.95:  # what is missing is what counts
        return f"{hundred:.1f} %"
    if abs(hundred) >= 9.5 or hundred == 0:
        return f"{hundred:.0f} %"
    return f"{two_digits(hundred)} %"


def two_digits(x: float) -> str:
    """A number that is not known better: 0.39, 490 million."""
    return number(float(f"{x:.2g}"))


def between(low: float | None, high: float | None) -> str:
    """The ends of an interval: 0.01 to 0.03; empty where one is not known."""
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


def quoted(token: LargeToken) -> str:
    """A token in quotation marks, short enough for a sentence."""
    text = visible(token.token)
    return f'"{text}"' if len(text) <= _LONGEST_TOKEN else f'"{text[:_LONGEST_TOKEN]}…"'


def visible(text: str) -> str:
    """A text of the run with what cannot be seen, or would turn the page around, as signs or codes."""
    signs = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
    hidden = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    return "".join(signs.get(c, f"\\u{ord(c):04x}" if unicodedata.category(c) in hidden else c) for c in text)


def probability(logp: float) -> str:
    """A probability from its logarithm: 0.9, or 1 in 3 million."""
    if logp == -math.inf:
        return "0"
    if logp > math.log(1e-3):
        return two_digits(math.exp(logp))
    return f"1 in {two_digits(math.exp(min(-logp, 700)))}"
