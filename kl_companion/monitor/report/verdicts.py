"""What is said of a monitored run: one record per verdict, and how numbers stand in its sentences."""

from __future__ import annotations

import math
import statistics
import tomllib
import unicodedata
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeGuard

if TYPE_CHECKING:  # types only: the report of a log uses this module, and must not load torch
    from kl_companion.monitor.largest_tokens import LargeToken
    from kl_companion.monitor.observation import Observation
    from kl_companion.monitor.report.run_folder import MonitoredRun

Level = Literal["wrong", "attention", "fine"]
LEVELS: tuple[Level, ...] = ("wrong", "attention", "fine")
RECENT = 5  # observations whose mean is "now": fewer are noise, more are the past
LEAST_KL = 1e-4  # nats per token: below, near the first step, relative sizes say nothing
_LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_LONGEST_TOKEN = 30  # characters of a token in a sentence


class RunVerdict(NamedTuple):
    """One thing that the rows of a run show.

    Attributes:
        level: ``"wrong"`` where a number or the training is not what it seems, ``"attention"`` where it costs
            something, ``"fine"``.
        topic: A key for programs, such as ``"bias"``.
        says: The finding with its number, a sentence that can be read alone.
        why: What it means, and when it matters.
        todo: What to do next; empty where nothing is to do.
        step: The observation that it is about; None where it is about the run.
    """

    level: Level
    topic: str
    says: str
    why: str
    todo: str = ""
    step: int | None = None


_TEXTS = tomllib.loads((files("kl_companion.monitor.report") / "verdicts.toml").read_text("utf-8"))


def verdict(key: str, level: Level | None = None, step: int | None = None, **gaps: object) -> RunVerdict:
    """Return the verdict of a key of verdicts.toml, with the gaps of its texts filled, floats by `number`."""
    row = _TEXTS[key]
    words = {name: number(x) if isinstance(x, float) else x for name, x in {"step": step, **gaps}.items()}
    says, why, todo = (row.get(text, "").format(**words) for text in ("says", "why", "todo"))
    return RunVerdict(level or row["level"], row.get("topic", key), says, why, todo, step)


def recent(run: MonitoredRun, name: str) -> float | None:
    """Mean of a column's finite entries in the last `RECENT` observations; None without one."""
    return mean(run.series(name)[-RECENT:])


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


def at_steps(rows: Sequence[Observation]) -> str:
    """The steps of some observations as the end of a sentence: at step 40, at steps 40, 50 and 3 others."""
    steps = [str(row.step) for row in rows]
    if len(steps) == 1:
        return f"at step {steps[0]}"
    if len(steps) <= 4:
        return f"at steps {', '.join(steps[:-1])} and {steps[-1]}"
    return f"at steps {', '.join(steps[:3])} and {len(steps) - 3} others"
