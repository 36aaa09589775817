"""Numbers of a log by their meaning: KLs with estimator, pair and average; length, reward, sigma, beta."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from kl_companion.monitor.logs.keys import (
    BESIDE,
    ESTIMATORS,
    QUANTITIES,
    RECORDED,
    SETTINGS,
    Metric,
    Release,
    first_key,
    looks_like_kl,
    plain,
    possible_metrics,
)
from kl_companion.monitor.logs.rows import Log, as_number, decimals
from kl_companion.monitor.logs.words import finite

EARLY, LATE = 50, 5  # the first fiftieth and the last fifth of the rows are the start and the end of a run
_SCORED = ("TRL", "Unsloth", "verl", "ms-swift")  # score at the temperature at which they sample
FEWEST = 8  # rows from which on a trend can be told
_LENGTHS, _MOST_DENOMINATOR = 200, 2049  # rows, and answers, that are tried
MOST_ANSWERS = 65_536  # of a row whose number of answers is unknown: more than any batch that was seen


class LogOptions(NamedTuple):
    """What the user knows of a log, and the log does not say.

    Attributes:
        framework: Its name; "" to tell it by the keys.
        release: Its release; "" where it is unknown.
        beta: The coefficient of the KL.
        estimator: "K1", "K2" or "K3": of the KL in keys that no framework has.
        answers: Number of answers that one row averages.
        group: Number of answers to one prompt.
    """

    framework: str = ""
    release: str = ""
    beta: float | None = None
    estimator: str = ""
    answers: float | None = None
    group: float | None = None


class KlNumber(NamedTuple):
    """A column of a log that is a KL, or is named like one.

    Attributes:
        key: As it stands in the log.
        series: One number per row.
        metrics: What it may be, the likeliest first; empty for a key of no known framework.
        estimator: "K1", "K2", "K3", "-K1", ...; "" where it is unknown.
        certain: Whether neither a setting nor a release can change the estimator.
        pair: Between which distributions; "" where it is unknown.
        average: "tokens", "answers" or "sum"; "" where it is unknown.
    """

    key: str
    series: Sequence[float]
    metrics: tuple[Metric, ...]
    estimator: str
    certain: bool
    pair: str
    average: str

    @property
    def to_reference(self) -> bool:
        """Whether it is a distance to the reference, the teacher or the base model."""
        return bool(self.metrics) and self.metrics[0].to_reference

    @property
    def scaled_by_batches(self) -> bool:
        """Whether a release that is possible logs it too small or too large by a number of batches."""
        return any("too SMALL" in m.note or "too LARGE" in m.note for m in self.metrics)

    @property
    def place(self) -> str:
        """Where the term is: "reward", "loss", or "" where it is unknown."""
        return {"old/reference": "reward", "policy/reference": "loss"}.get(self.pair, "")


@dataclass(frozen=True, eq=False)  # equal by identity, so that what follows from it can be cached
class Quantities:
    """The numbers of a log.

    Attributes:
        log: The log.
        release: Which framework and releases are possible.
        options: What the user knows of it.
        kls: Columns that are a KL, or are named like one.
        keys: The key of a quantity of frameworks.toml, by its name.
        answers: The number of answers in one row, at least; None where nothing tells it.
        digits: The number of decimals to which a column was rounded, by key; None where it is in full.
    """

    log: Log
    release: Release
    options: LogOptions
    kls: tuple[KlNumber, ...]
    keys: Mapping[str, str]
    answers: float | None
    digits: Mapping[str, int | None]

    def series(self, name: str) -> Sequence[float]:
        """Return a quantity, one number per row; [] where the log does not have it."""
        key = self.keys.get(name)
        return self.log.columns[key] if key else []

    def early(self, series: Sequence[float]) -> float | None:
        """Return the mean of the first rows; None where they are not known."""
        return _mean(series[: self.window(EARLY)])

    def late(self, series: Sequence[float]) -> float | None:
        """Return the mean of the last rows; None where they are not known."""
        return _mean(series[-self.window(LATE) :])

    def window(self, part: int) -> int:
        """Return a number of rows: a part of all, and one at least."""
        return max(1, len(self.log.steps) // part)

    def setting(self, name: str) -> Any:
        """Return a setting of frameworks.toml that the log holds; None without it."""
        known = {key.rpartition(".")[2].lower(): x for key, x in self.log.config.items()}
        return next((known[key] for key in SETTINGS[name] if key in known), None)

    @cached_property
    def reference(self) -> KlNumber | None:
        """The KL to the reference; a key that no framework has where there is no other; None without one."""
        named = [x for x in self.kls if x.to_reference and x.metrics[0].kind == "kl"]
        named.sort(key=lambda x: x.estimator != "exact")
        unknown = [x for x in self.kls if not x.metrics]
        informative = [
            x for x in named if any(finite(x.series)) or (x.estimator == "exact" and finite(x.series))
        ]
        return next(iter([*informative, *named, *unknown]), None)

    def recorded(self, name: str) -> Sequence[float]:
        """Return a column of `Observation` that the monitor has recorded; [] where the log has none."""
        return self.log.columns.get(self._recorded_keys.get(name, ""), [])

    @cached_property
    def _recorded_keys(self) -> dict[str, str]:
        if self.release.framework == RECORDED:
            return {key: key for key in self.log.columns}
        beside = {plain(key): key for key in self.log.columns}
        return {name.removeprefix(BESIDE): key for name, key in beside.items() if name.startswith(BESIDE)}

    def recent(self, name: str) -> float | None:
        """Return the mean of a recorded column over the last rows; None where it is not known."""
        return self.late(self.recorded(name))

    @property
    def is_recorded(self) -> bool:
        """Whether the monitor has written some of the numbers."""
        return bool(self._recorded_keys)

    @cached_property
    def observed(self) -> int:
        """The last row that the monitor has looked at: beside a trainer's numbers it has its own in some."""
        known = (i for i, x in enumerate(self.recorded("largest_log_ratio")) if not math.isnan(x))
        return max(known, default=len(self.log.steps) - 1)

    def observed_tokens(self) -> Sequence[float]:
        """Return the number of tokens that the monitor has looked at, per row; [] without it."""
        return self.recorded("response_tokens") or self.recorded("tokens")

    @cached_property
    def logged(self) -> KlNumber | None:
        """The trainer's own number in the folder of a monitored run; None in any other log."""
        own = (x for x in self.kls if x.key == "logged" and self.release.framework == RECORDED)
        return next(own, None)

    @property
    def cut_off(self) -> float:
        """Nats per token by which top-p may lower a sampled log-ratio: ln(1/top_p), 0 without it."""
        top_p = as_number(self.setting("top_p"))
        return -math.log(top_p) if top_p is not None and 0 < top_p < 1 else 0.0

    @property
    def sampled_otherwise(self) -> str:
        """Settings by which the sampler may differ from the scored distribution; "" without any."""
        top_k, temperature = as_number(self.setting("top_k")), as_number(self.setting("temperature"))
        scored = self.release.framework.startswith(_SCORED)
        texts = ["top-p"] if self.cut_off else []
        texts += ["top-k"] if top_k is not None and top_k > 0 else []
        texts += ["the temperature"] if temperature not in (None, 1.0) and not scored else []
        return " and ".join(texts)

    def tokens(self, row: int) -> float | None:
        """Return the number of tokens of one row; None where it is not known."""
        known = self.series("tokens")
        if known and math.isfinite(known[row]):
            return known[row]
        answers, lengths = self.answers, self.series("length")
        return answers * lengths[row] if answers and lengths and math.isfinite(lengths[row]) else None

    def betas(self) -> Sequence[float]:
        """Return the coefficient of every row where the log has it (a controller moves it); [] without it."""
        return self.series("beta") if self.options.beta is None else []

    def half_digit(self, key: str) -> float:
        """Return by how much the values of a column may be rounded; 0 where they are printed in full."""
        own = self.digits[key]
        if own is None and not any(finite(self.log.columns[key])) and self.release.framework != "slime":
            shown = [x for x in self.digits.values() if x]
            own = statistics.mode(shown) if len(shown) > len(self.digits) / 2 else None
            own = 4 if plain(key) == "loss" and own is None else own
        return 0.5 * 10.0**-own if own else 0.0


def _denominator(lengths: Sequence[float]) -> float | None:
    """Return the least number of answers whose mean lengths these can be; None where it is not told by them.

    Mean lengths are whole numbers divided by the number of answers, which is a multiple of the result.
    """
    shown = list(lengths[:_LENGTHS])
    if len(shown) < 4 or all(x == int(x) for x in shown):
        return None
    digits = decimals(shown)
    for answers in range(2, _MOST_DENOMINATOR):
        slack = (
            0.0 if answers & (answers - 1) == 0 else 2e-7 * max(shown) * answers
        )  # float32 is exact in halves
        if slack > 0.05:
            continue
        if all(abs(x * answers - round(x * answers)) <= slack + 1e-9 for x in shown):
            by_rounding = digits is not None and 10**digits % answers == 0
            chance = (answers / 10**digits) ** len(shown) if by_rounding and digits else 0.0
            return float(answers) if chance < 1e-6 else None
    return None


def _mean(series: Sequence[float]) -> float | None:
    known = finite(series)
    return statistics.fmean(known) if known else None


def quantities(log: Log, release: Release, options: LogOptions) -> Quantities:
    """Return the numbers of a log by their meaning."""
    keys = {name: key for name, patterns in QUANTITIES.items() if (key := first_key(log.columns, patterns))}
    digits = {key: None if log.recorded else decimals(series) for key, series in log.columns.items()}
    q = Quantities(log, release, options, (), keys, None, digits)
    known = finite(q.series("answers"))
    answers = options.answers or (
        statistics.median(known) if known else _denominator(finite(q.series("length")))
    )
    numbers = (_kl_number(key, series, q) for key, series in log.columns.items())
    return replace(q, kls=tuple(x for x in numbers if x is not None), answers=answers)


def _kl_number(key: str, series: Sequence[float], q: Quantities) -> KlNumber | None:
    metrics = tuple(possible_metrics(key, q.release))
    if metrics and any(
        x < 0 for x in finite(series)
    ):  # RLOO's K1 may be negative, GRPO's K3 under the same key not
        metrics = tuple(sorted(metrics, key=lambda x: x.estimator != "K1"))
    if not metrics:  # of an own key only the user knows the estimator
        name = plain(key).lower()
        part = "/" in name and possible_metrics(name.rpartition("/")[0], q.release)
        if part or not looks_like_kl(key) or name.startswith(("eval", "test/", "val/", "val-", BESIDE)):
            return None
        if not q.options.estimator:
            return KlNumber(key, series, (), "", False, "", "")
        metrics = (
            Metric(
                "", "", key, "kl", q.options.estimator, "", "policy/reference", "tokens", "", "", "as set"
            ),
        )
    if key == "logged" and q.log.recorded and q.log.recorded.number:  # searched on the tokens themselves
        estimator, pair, average, *factor = q.log.recorded.number.split()
        kind = "scaled" if factor else "kl"
        own = {"estimator": estimator, "pair": pair, "average": average, "setting": "", "kind": kind}
        metrics = (metrics[0]._replace(**own, factor="".join(factor), note=""),)
    if metrics[0].kind not in ("kl", "scaled"):
        return None
    setting = q.setting("estimator")
    chosen = ESTIMATORS.get(str(setting).lower(), "") if metrics[0].setting and setting else ""
    certain = bool(chosen) or all(x.estimator == metrics[0].estimator and not x.setting for x in metrics)
    averages = {x.average for x in metrics if x.estimator == metrics[0].estimator}
    average = metrics[0].average if len(averages) == 1 else ""
    return KlNumber(key, series, metrics, chosen or metrics[0].estimator, certain, metrics[0].pair, average)
