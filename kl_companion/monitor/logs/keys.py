"""Keys of a log: of which framework and releases they are, and what each of them is."""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any, NamedTuple

_PLACE = files("kl_companion.monitor.logs")
_DATA: dict[str, Any] = tomllib.loads((_PLACE / "frameworks.toml").read_text("utf-8"))
QUANTITIES: dict[str, list[str]] = _DATA["quantities"]
SETTINGS: dict[str, list[str]] = _DATA["settings"]
ESTIMATORS: dict[str, str] = _DATA["estimators"]
WORDS: dict[str, str] = _DATA["words"]
VOCABULARIES: dict[int, str] = {int(size): name for size, name in _DATA["vocabularies"].items()}
AVERAGES = {
    "tokens": "mean over tokens",
    "answers": "mean over answers of each answer's token mean",
    "sum": "sum over the answer, mean over answers",
    "groups": "mean over groups",
    "batch": "of the whole batch",
    "": "",
}
RECORDED, BESIDE = "KLMonitor", "kl_monitor/"  # the monitor's own folder, and its keys in a trainer's log
REFERENCES = ("reference", "teacher", "base")
_KL = re.compile(
    r"(?:^|[/_ .-])(?:k[123]_?)?kl[0-9]?(?:$|[/_ .-])|(?:^|[/_ ])k[123](?:$|[/_ ])|approxkl|kl_?div",
    re.IGNORECASE,
)
_NOT_KL = re.compile(
    r"coef|coeff|beta|target|loss_weight|(?:max|min|std|entropy|clip)(?:$|[/_])|median_abs", re.IGNORECASE
)


class Metric(NamedTuple):
    """A key of a framework, one row of metrics.csv.

    Attributes:
        framework: Of which it is a key.
        releases: In which it is this number: "0.16-1.8", "1.9+", "before 2025-12"; "" for all.
        name: Patterns of the key, separated by blanks where there are several.
        kind: "kl", "scaled" (a KL times beta), "share", "ratio", "difference", "entropy", ...
        estimator: "K1", "K2", "K3", "-K1", ...; "" where it is no estimate.
        setting: The setting by which the estimator is chosen; "" where it is fixed.
        pair: Between which distributions: "policy/reference", "old/new", ...
        average: A key of `AVERAGES`.
        factor: "beta" or "-beta" where the number is multiplied by it.
        clamp: What is clamped, and at which value.
        note: What else must be known.
    """

    framework: str
    releases: str
    name: str
    kind: str
    estimator: str
    setting: str
    pair: str
    average: str
    factor: str
    clamp: str
    note: str

    @property
    def to_reference(self) -> bool:
        """Whether it is a distance to the reference, the teacher or the base model."""
        return self.pair.rpartition("/")[2] in REFERENCES

    def fits(self, key: str) -> bool:
        """Return whether a plain key (see `plain`) is this one."""
        return any(fnmatchcase(key, pattern) for pattern in _patterns(self.name))


def _patterns(name: str) -> list[str]:
    return [name] if name == "mismatch kl" else name.split(" ")


def _metrics() -> tuple[Metric, ...]:
    with (_PLACE / "metrics.csv").open(encoding="utf-8") as stream:
        return tuple(Metric(**row) for row in csv.DictReader(stream))


METRICS = _metrics()


def plain(key: str) -> str:
    """Return a key without what loggers add: "train/", blanks around "/", capitals of a notebook's table."""
    text = re.sub(r"\s*/\s*", "/", key.strip())
    text = re.sub(r"^(?:train/|train_(?!loss|rollout))", "", text)
    return WORDS.get(text, text)


class Release(NamedTuple):
    """Bounds of the releases that are possible.

    Attributes:
        framework: The name; "" where the keys are of none that is known.
        low: The first release, or "".
        high: The last one, or "".
        others: Frameworks that log the same keys.
        chosen: Whether the user named the release.
    """

    framework: str
    low: str = ""
    high: str = ""
    others: tuple[str, ...] = ()
    chosen: bool = False

    @property
    def text(self) -> str:
        """The framework with its releases, as words."""
        if not self.framework:
            return "no framework that is known here"
        span = f"{self.low} to {self.high}" if self.low and self.high and self.low != self.high else ""
        span = span or (
            self.high if self.low == self.high else f"{self.low}+" if self.low else f"to {self.high}"
        )
        return f"{self.framework} {span}".strip()


def name_release(keys: Iterable[str], framework: str = "", release: str = "") -> Release:
    """Return which framework wrote a log, and in which releases.

    Args:
        keys: Of the log.
        framework: By the user, else it is told by the keys.
        release: By the user: "0.19.1", which decides.

    Raises:
        ValueError: The framework is not among those of metrics.csv.
    """
    names = {plain(key) for key in keys}
    known = {row["name"]: row for row in _DATA["framework"]}
    if framework:
        name = next((x for x in known if x.lower() == framework.lower()), "")
        name = name or next((x.framework for x in METRICS if x.framework.lower() == framework.lower()), "")
        if not name:
            raise ValueError(f"framework is {framework!r}, expected one of {', '.join(sorted(known))}")
    else:
        name = next((row["name"] for row in _DATA["framework"] if _is(row, names)), "")
    row = known.get(name, {})
    excluded = {x for x, key in row.get("unlike", {}).items() if _has(key, names)}
    others = tuple(x for x in row.get("also", ()) if x not in excluded)
    if release:
        return Release(name, release, release, others, True)
    low, high = "", ""
    for clue in row.get("release", ()):
        if all((not _has(k[1:], names)) if k[0] == "!" else _has(k, names) for k in clue["keys"]):
            first, last = bounds(clue["range"])
            low = max(low, first, key=_version)
            high = min(high or last, last or high, key=_version) if high or last else ""
    return Release(name, low, high, others)


def _is(row: Mapping[str, Any], names: set[str]) -> bool:
    every = all(_has(pattern, names) for pattern in row.get("all", ()))
    return every and ("any" not in row or any(_has(pattern, names) for pattern in row["any"]))


def _has(pattern: str, names: set[str]) -> bool:
    return pattern in names or any(fnmatchcase(name, pattern) for name in names)


def bounds(releases: str) -> tuple[str, str]:
    """Return the first and the last release of a span of metrics.csv; "" where there is no bound."""
    if releases.startswith("before "):
        return "", releases.removeprefix("before ")
    if releases.endswith("+"):
        return releases[:-1], ""
    if re.fullmatch(r"\d{4}-\d\d", releases):
        return releases, releases
    first, dash, last = releases.partition("-")
    return (first, last) if dash else (releases, releases)


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(x) for x in re.findall(r"\d+", release)[:3])


def overlaps(releases: str, low: str, high: str) -> bool:
    """Return whether a span of metrics.csv has a release from `low` to `high`."""
    first, last = bounds(releases)
    if releases.startswith("before ") and low:
        return _version(low) < _version(last)
    return _at_most(first, high) and _at_most(low, last)


def _at_most(low: str, high: str) -> bool:
    """Whether one release is not after another; 1.8.2 is not after 1.8."""
    if not low or not high:
        return True
    a, b = _version(low), _version(high)
    return a[: len(b)] <= b


def possible_metrics(key: str, release: Release) -> list[Metric]:
    """Return what a key may be, the likeliest first; [] where it is unknown."""
    name = plain(key)
    if name.startswith(BESIDE):  # the monitor writes its numbers beside those of the trainer
        name, release = name.removeprefix(BESIDE), Release(RECORDED)
    own = [x for x in METRICS if x.framework == release.framework and x.fits(name)]
    inside = [x for x in own if overlaps(x.releases, release.low, release.high)]
    for other in release.others:
        if not release.chosen:
            rows = [x for x in METRICS if x.framework == other and x.fits(name)]
            inside += [
                x for x in rows if other == "Unsloth" or overlaps(x.releases, release.low, release.high)
            ]
    return inside or own


def looks_like_kl(key: str) -> bool:
    """Return whether a key that no framework has names a KL."""
    name = plain(key)
    return bool(_KL.search(name)) and not _NOT_KL.search(name)


def first_key(columns: Iterable[str], patterns: Sequence[str]) -> str | None:
    """Return the key of the first pattern that one has; None without one."""
    names = {plain(key).lower(): key for key in columns}
    for pattern in patterns:
        if pattern in names:
            return names[pattern]
    return None
