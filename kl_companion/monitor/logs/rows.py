"""Rows of a log as columns of numbers: one step per row, and what was left out."""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # types only: a log is read without torch
    from kl_companion.monitor.largest_tokens import LargeToken

STEP_KEYS = (
    "train/global_step",
    "global_step/max_steps",
    "global_step",
    "trainer/global_step",
    "training/global_step",
    "train/step",
    "step",
    "steps",
    "iteration",
    "update",
    "progress/batch",
    "_step",
    "episode",
)
SUMMARY = ("train_runtime", "train/train_runtime")  # keys of the last row of Hugging Face's Trainer
EVALUATION = ("eval", "val", "test", "_", "step", "epoch", "timing")  # beginnings of keys of no training row
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?))\s*")
_DECIMALS = 200  # values of a column that are read for the number of their decimals


class RecordedRun(NamedTuple):
    """What the folder of a monitored run holds beside its numbers.

    Attributes:
        tokens: By step, sampled tokens whose log-ratio is largest in size, largest first.
        broken: Steps and values of cells that are NaN or infinite, by key; a cell that is empty is not known.
        logged_as: By step, the estimators that equal the logged number; see `monitor.logged_as`.
    """

    tokens: Mapping[int, Sequence[LargeToken]] = MappingProxyType({})
    broken: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({})
    logged_as: Mapping[int, Sequence[str]] = MappingProxyType({})

    @property
    def number(self) -> str:
        """The name that equals the logged number in every row in which one can be told; "" without any."""
        rows = list(self.logged_as.values())
        return next((x for x in rows[0] if all(x in names for names in rows)), "") if rows else ""


class Log(NamedTuple):
    """A log that was read.

    Attributes:
        form: What it is a file of, such as "TensorBoard event file".
        steps: One number per row, increasing; 1, 2, ... where the log has none.
        columns: One number per row by key, NaN where the row has none.
        config: Settings that stand in the log, by their flat key.
        notes: Sentences on what was left out or merged.
        counted: Whether the steps are only the places of the rows.
        recorded: What only the folder of a monitored run holds; None of any other log.
    """

    form: str
    steps: Sequence[float]
    columns: Mapping[str, Sequence[float]]
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    counted: bool = False
    recorded: RecordedRun | None = None


def as_number(value: Any) -> float | None:
    """Return a cell of a log as a float, NaN for an empty one; None where it is no number."""
    if value is None or value == "":
        return math.nan
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    if value.endswith(")"):  # np.float64(0.5)
        value = value[value.find("(") + 1 : -1]
    try:
        return float(value)
    except ValueError:
        match = _NUMBER.fullmatch(value)
        return float(match[1]) if match else math.nan if value.strip().lower() in _EMPTY else None


_EMPTY = ("no log", "none", "null", "n/a", "na", "-", "--")


def decimals(series: Sequence[float]) -> int | None:
    """Return the number of decimals to which a column was rounded; None for 5 and more, or if unknown."""
    shown = list(itertools.islice((x for x in series if math.isfinite(x) and x != 0), _DECIMALS))
    most = 0
    for x in shown:
        text = repr(x)
        if "e" in text:
            return None
        most = max(most, len(text.partition(".")[2].rstrip("0")))
    return most if shown and 0 < most <= 4 else None


class RowCollector:
    """Rows as they are read, stored by column.

    Attributes:
        columns: Numbers by key; shorter ones end in the last row that has the key.
        config: Settings that were read beside the rows.
        notes: Sentences for `Log.notes`.
        count: Rows so far.
        texts: Keys whose values are no numbers.
    """

    def __init__(self) -> None:
        """Begin with no row."""
        self.columns: dict[str, MutableSequence[float]] = {}
        self.config: dict[str, Any] = {}
        self.notes: list[str] = []
        self.count = 0
        self.texts: set[str] = set()
        self._templates: dict[tuple[str, ...], list[MutableSequence[float]]] = {}
        self._last: list[MutableSequence[float]] = []
        self._summaries = self._evaluations = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row by its keys."""
        self.add_values(tuple(row), row.values())

    def add_values(self, keys: tuple[str, ...], values: Iterable[Any]) -> None:
        """Add a row; a summary of Hugging Face's Trainer and rows of an evaluation are counted and left out.

        Args:
            keys: Each of them once; rows of the same keys in the same order are fastest.
            values: Numbers, or texts that may be numbers, one per key.
        """
        columns = self._templates.get(keys)
        if columns is None:
            columns = self._templates[keys] = self._template(keys)
        if not columns:
            return
        numbers = [x if type(x) is float else self._number(k, x) for k, x in zip(keys, values, strict=True)]
        if columns is not self._last:
            if all(math.isnan(x) for x in numbers) and self.texts.issuperset(keys):
                return
            for column in columns:
                column.extend(array("d", [math.nan]) * (self.count - len(column)))
        for column, number in zip(columns, numbers, strict=True):
            column.append(number)
        self._last = columns
        self.count += 1

    def _template(self, keys: tuple[str, ...]) -> list[MutableSequence[float]]:
        """Return the columns of a row's keys; [] for a row that is left out."""
        if any(key in SUMMARY for key in keys):
            self._summaries += 1
            return []
        if all(key.startswith(EVALUATION) for key in keys):
            self._evaluations += 1
            return []
        return [self.columns.setdefault(key, array("d")) for key in keys]

    def _number(self, key: str, value: Any) -> float:
        """Return a value as a number; NaN for a text, whose key is noted."""
        number = as_number(value)
        if number is None and key == "global_step/max_steps":
            number = as_number(str(value).partition("/")[0])
        if number is None:
            self.texts.add(key)
        return math.nan if number is None else number

    def log(self, form: str) -> Log:
        """Return what was collected as a `Log`; ValueError where no row has a number."""
        for key in [x for x in self.texts if x in self.columns and not any(v == v for v in self.columns[x])]:
            del self.columns[key]
        if not self.count or not self.columns:
            raise ValueError(
                f"it is read as {form} and has {self._what()}, expected rows of numbers with their keys"
            )
        for column in self.columns.values():
            column.extend(array("d", [math.nan]) * (self.count - len(column)))
        if self._summaries:
            self.notes.append("The summary at the end (train_runtime) repeats the last values and is no row.")
        if self._evaluations:
            one = self._evaluations == 1
            rows = "One row holds" if one else f"{self._evaluations} rows hold"
            self.notes.append(
                f"{rows} only numbers of an evaluation and {'was' if one else 'were'} left out."
            )
        steps, counted = self._steps()
        order = self._places(steps)
        columns: dict[str, Sequence[float]] = dict(self.columns)
        if order is not None:
            columns = {key: _merged(column, order) for key, column in columns.items()}
            steps = sorted(order)
        return Log(form, steps, columns, self.config, tuple(self.notes), counted)

    def _what(self) -> str:
        if self._summaries:
            return "only the summary of a run"
        texts = ", ".join(sorted(self.texts)[:4])
        return f"only texts ({texts})" if texts else "no row"

    def _steps(self) -> tuple[Sequence[float], bool]:
        """Return the step of every row, and whether they are only counted."""
        for key in STEP_KEYS:
            column = self.columns.get(key)
            if column is None:
                continue
            known = [x for x in column if math.isfinite(x)]
            if len(known) == len(column) and (len(set(known)) > 1 or len(known) == 1):
                return list(column), False
        return [float(i + 1) for i in range(self.count)], True

    def _places(self, steps: Sequence[float]) -> dict[float, list[int]] | None:
        """Return the rows of every step where rows must be merged or sorted, else None."""
        if all(a < b for a, b in itertools.pairwise(steps)):
            return None
        places: dict[float, list[int]] = {}
        for i, step in enumerate(steps):
            places.setdefault(step, []).append(i)
        if any(b < a for a, b in itertools.pairwise(steps)):
            self.notes.append(
                "The steps go back, as after a restart: of a repeated step the last row counts."
            )
        return places


def _merged(column: Sequence[float], places: Mapping[float, list[int]]) -> MutableSequence[float]:
    """Return one value per step, the last that is known."""
    values = array("d")
    for step in sorted(places):
        known = [column[i] for i in places[step] if not math.isnan(column[i])]
        values.append(known[-1] if known else math.nan)
    return values


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings with keys joined by dots; a wandb entry ``{"value": x}`` is x."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            inner = value.get("value", value) if set(value) <= {"value", "desc"} and value else value
            result.update(flat(inner, name) if isinstance(inner, Mapping) else {name: inner})
        else:
            result[name] = value
    return result
