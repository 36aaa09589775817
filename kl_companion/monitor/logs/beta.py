"""The coefficient of the KL in a log: set, printed, or recovered, with what rounding allows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from kl_companion.monitor.logs.inequalities import quotient_interval
from kl_companion.monitor.logs.keys import plain
from kl_companion.monitor.logs.quantities import KlNumber, Quantities
from kl_companion.monitor.logs.rows import as_number
from kl_companion.monitor.logs.words import finite, number

AGREE = 0.8  # of the rows must contain one quotient
TOLERANCE = 0.06  # of it: answers of other lengths, and the ratio of old and new policy
_HELD = ("TRL GRPO", "Unsloth")  # log the loss, of which beta times kl is all that is left on-policy


class Beta(NamedTuple):
    """The coefficient of the KL.

    Attributes:
        value: It; None where it is unknown.
        source: Where it is from, as the end of a sentence: "printed in the log".
        low: The least quotient of a row where it was recovered, or the least that rounding allows; else None.
        high: The most.
        default: The default of the framework that is within the bounds; None where there is none.
    """

    value: float | None
    source: str
    low: float | None = None
    high: float | None = None
    default: float | None = None

    @property
    def text(self) -> str:
        """The coefficient and its source in words."""
        if self.value is None:
            return self.source
        span = ""
        if self.low is not None and self.high is not None:
            span = f" ({number(self.low)} to {number(self.high)} in single rows)"
        return f"β = {number(self.value)}, {self.source}{span}"


@lru_cache(maxsize=4)
def beta_of(q: Quantities) -> Beta:
    """Return the coefficient of the KL to the reference."""
    if q.options.beta is not None:
        return Beta(q.options.beta, "set by --beta")
    column = finite(q.series("beta"))
    if column:
        moved = max(column) > min(column) * 1.01
        return Beta(column[-1], f"logged as {q.keys['beta']}{', at the end' if moved else ''}")
    recovered = _from_rewards(q) or _from_loss(q)
    printed = _printed(q)
    if printed is not None:
        confirmed = (
            recovered is not None and recovered.value and abs(recovered.value / printed - 1) < TOLERANCE
        )
        own = "as the run says of itself" if q.log.recorded else "printed in the log"
        return Beta(printed, own + (" and confirmed by loss / kl" if confirmed else ""))
    return recovered or Beta(None, "β is not in the log")


def _printed(q: Quantities) -> float | None:
    """Return the coefficient among the settings; verl has one for the reward and one for the loss."""
    place = q.reference.place if q.reference else ""
    names = {key.rpartition(".")[2].lower(): x for key, x in q.log.config.items()}
    if q.release.framework == "verl" and place:
        value = as_number(names.get("kl_coef" if place == "reward" else "kl_loss_coef"))
    else:
        value = as_number(q.setting("beta"))
    return value if value is not None and math.isfinite(value) else None


def _from_rewards(q: Quantities) -> Beta | None:
    """Return -non_score_reward / objective/kl, which is beta where the KL is in the reward."""
    scaled = next((x for x in q.kls if x.metrics and x.metrics[0].factor == "-beta"), None)
    kl = next((x for x in q.kls if x.metrics and x.metrics[0].kind == "kl" and x.average == "sum"), None)
    if scaled is None or kl is None:
        return None
    quotients = [
        -a / b
        for a, b in zip(scaled.series, kl.series, strict=True)
        if math.isfinite(a / b if b else math.nan)
    ]
    if not quotients or max(quotients) > min(quotients) * 1.02:
        return None
    return Beta(statistics.median(quotients), f"as minus {scaled.key} / {kl.key} in every row")


def _from_loss(q: Quantities) -> Beta | None:
    """Return loss / kl where it is the same in every row: on-policy, and with answers that weigh the same."""
    own = (x for x in q.kls if x.to_reference and x.metrics[0].framework in _HELD and any(finite(x.series)))
    kl = next(own, None)
    if kl is None or "loss" not in q.keys or kl.estimator != "K3":
        return None
    half = q.half_digit(q.keys["loss"]) or (5e-5 if _four_digits(q) else 0.0)
    rows = _informative(q, kl, half)
    if rows:
        value = statistics.median(x / y for x, y in rows)
        intervals = quotient_interval([x for x, _ in rows], half, [y for _, y in rows])
        inside = [
            low <= value * (1 + TOLERANCE) and high >= value * (1 - TOLERANCE) for low, high in intervals
        ]
        if value > 0 and sum(inside) >= AGREE * len(rows) and (len(rows) >= 3 or half == 0):
            quotients = [x / y for x, y in rows]
            return Beta(value, f"recovered as loss / kl of {len(rows)} rows", min(quotients), max(quotients))
        return Beta(None, "β is not in the log, and loss / kl is not the same in its rows: not recoverable")
    return _bounded(q, kl, half)


def _four_digits(q: Quantities) -> bool:
    loss = finite(q.log.columns[q.keys["loss"]])
    return bool(loss) and all(abs(x - round(x, 4)) < 1e-9 for x in loss)


def _informative(q: Quantities, kl: KlNumber, half: float) -> list[tuple[float, float]]:
    """Return loss and kl of the rows beyond rounding; if any have answers of one length, of these."""
    loss, short, long = q.log.columns[q.keys["loss"]], q.series("shortest"), q.series("longest")
    rows = [
        i
        for i in range(len(loss))
        if math.isfinite(loss[i]) and math.isfinite(kl.series[i]) and kl.series[i] > 0
    ]
    same = [i for i in rows if short and long and short[i] == long[i]]
    rows = same or rows
    rows = [i for i in rows if abs(loss[i]) >= 10 * half]
    return [(loss[i], kl.series[i]) for i in rows]


def _bounded(q: Quantities, kl: KlNumber, half: float) -> Beta | None:
    """Return the interval that all rows allow where the loss is rounded to a few digits."""
    loss = q.log.columns[q.keys["loss"]]
    rows = [
        (x, y)
        for x, y in zip(loss, kl.series, strict=True)
        if math.isfinite(x) and math.isfinite(y) and y > 0
    ]
    if not half or not rows:
        return None
    intervals = quotient_interval([x for x, _ in rows], half, [y for _, y in rows])
    low, high = max(0.0, max(x for x, _ in intervals)), min(x for _, x in intervals)
    if low >= high:
        return Beta(None, "β is not in the log, and loss / kl is not the same in its rows: not recoverable")
    span = f"between {number(low)} and {number(high)}" if low > 0 else f"below {number(high)}"
    default = next((x for x in _defaults(q) if low <= x <= high), None)
    agrees = f"; the default {number(default)} of these releases agrees" if default else ""
    return Beta(None, f"β is not in the log; by the rounded loss it is {span}{agrees}", low, high, default)


def _defaults(q: Quantities) -> Iterable[float]:
    return (0.04,) if plain(q.keys.get("length", "")) == "completion_length" else ()
