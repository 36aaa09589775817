"""What the fast kernels were asked to reach, as data, and what the rows of the table `performance` say of it.

Every goal is asked of float32 and bfloat16 logits, forward and backward together, where `MeasuredAt` says, in
the mode that knows the weights of the loss, as a training loop does (`OURS`).
A row is a mapping with the columns of the table's manifest, None where a cell is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Rows = Sequence[Mapping[str, Any]]
DTYPES = ("float32", "bfloat16")
OTHERS = ("forward_kl", "jensen_shannon", "pearson", "squared_hellinger")
OURS = "ours, weights"
FROM_HIDDEN = ("TRL", "Liger", "Liger, compiled", "Liger, Triton")  # the peers that take hidden states


class MeasuredAt(NamedTuple):
    """Where a goal is measured: the threads, the allocator and the size of the rows that count."""

    threads: int
    tokens: int
    vocab: int = 151_936
    allocator: str = "default"


CPU, GPU = MeasuredAt(threads=2, tokens=256), MeasuredAt(threads=1, tokens=8192)
Measure = Callable[[Rows, str, MeasuredAt], float | None]


class Goal(NamedTuple):
    """A number of the table that must be at least (or, without `at_least`, at most) the bound."""

    work: str
    text: str
    bound: float
    measure: Measure
    at_least: bool = True
    dtypes: tuple[str, ...] = DTYPES

    @property
    def asked(self) -> str:
        """The bound in words."""
        return f"at {'least' if self.at_least else 'most'} {self.bound:g}"


class GoalFound(NamedTuple):
    """A goal in one dtype, with what was measured; None where it was not."""

    goal: Goal
    dtype: str
    measured: float | None

    @property
    def verdict(self) -> str:
        """reached, missed or not measured."""
        if self.measured is None:
            return "not measured"
        ahead = self.measured - self.goal.bound
        return "reached" if (ahead if self.goal.at_least else -ahead) >= 0 else "missed"


def cell(
    rows: Rows, column: str, variant: str, dtype: str, at: MeasuredAt, work: str = "reverse_kl"
) -> float | None:
    """One number of the table, None where there is none."""
    where = {**at._asdict(), "variant": variant, "dtype": dtype, "work": work}
    for row in rows:
        if row[column] is not None and all(row[name] == value for name, value in where.items()):
            return float(row[column])
    return None


def ratio(above: float | None, below: float | None) -> float | None:
    """One number over another, None where one is missing."""
    return None if above is None or not below else above / below


def _value(column: str, variant: str, work: str = "reverse_kl") -> Measure:
    return lambda rows, dtype, at: cell(rows, column, variant, dtype, at, work)


def _over(column: str, above: Iterable[str], below: str, work: str = "reverse_kl", **moved: Any) -> Measure:
    """The smallest number among some variants over that of another."""

    def measure(rows: Rows, dtype: str, at: MeasuredAt) -> float | None:
        at = at._replace(**moved)
        found = [cell(rows, column, name, dtype, at, work) for name in above]
        least = min((x for x in found if x is not None), default=None)
        return ratio(least, cell(rows, column, below, dtype, at, work))

    return measure


def _faster(than: Iterable[str], work: str = "reverse_kl", ours: str = OURS, **moved: Any) -> Measure:
    return _over("milliseconds", than, ours, work, **moved)


_COMPILED, _ENTROPY = ("torch.compile",), ("F.cross_entropy",)
_WARM = {"allocator": "warm"}
_KL, _LOGP, _HIDDEN, _OTHER = "reverse KL", "log-prob", "from hidden states", "other divergences"
_AS_COMPILED = "times as fast as the compiled formula"
_AS_ENTROPY = "times as fast as F.cross_entropy"
GOALS: tuple[Goal, ...] = (
    Goal(_KL, _AS_COMPILED, 2.0, _faster(_COMPILED)),
    Goal(_KL, "times as fast as the usual formula", 5.0, _faster(("naive",))),
    Goal(f"{_KL}, warm memory", _AS_COMPILED, 1.3, _faster(_COMPILED, **_WARM)),
    Goal(f"{_KL}, 128 x 8,192", _AS_COMPILED, 1.0, _faster(_COMPILED, tokens=128, vocab=8192)),
    Goal(_KL, "extra memory / logits", 1.02, _value("extra_of_logits", OURS), at_least=False),
    Goal(
        f"{_KL}, in place", "extra memory / logits", 0.02, _value("extra_of_logits", "ours, in place"), False
    ),
    Goal(f"{_KL}, in place", "time / memory roof", 8.0, _value("of_floor", "ours, in place"), False),
    *(
        Goal(_OTHER, f"{name}, time / reverse KL", 1.5, measure, False)
        for name in OTHERS
        for measure in [_over("milliseconds", (OURS,), "ours, reverse KL", name)]
    ),
    Goal(_LOGP, _AS_ENTROPY, 1.3, _faster(_ENTROPY, "logp")),
    Goal(_LOGP, _AS_COMPILED, 1.3, _faster(_COMPILED, "logp")),
    Goal(f"{_LOGP}, warm memory", _AS_ENTROPY, 1.3, _faster(_ENTROPY, "logp", **_WARM)),
    Goal(f"{_LOGP}, warm memory", _AS_COMPILED, 1.3, _faster(_COMPILED, "logp", **_WARM)),
    Goal(
        _HIDDEN, "times as fast as the best of TRL and Liger", 1.0, _faster(FROM_HIDDEN, "linear_kl", "ours")
    ),
    Goal(_HIDDEN, "time / bare matrix products", 1.15, _value("of_floor", "ours", "linear_kl"), False),
    Goal(_HIDDEN, "extra memory / logits", 0.05, _value("extra_of_logits", "ours", "linear_kl"), False),
    Goal(
        _HIDDEN,
        "error of the gradient / TRL's",
        1.0,
        _over("gradient_error", ("ours",), "TRL", "linear_kl"),
        at_least=False,
        dtypes=("bfloat16",),
    ),
)


def findings(rows: Rows, at: MeasuredAt = CPU, goals: Sequence[Goal] = GOALS) -> list[GoalFound]:
    """Every goal in its dtypes, from the rows of a table."""
    return [GoalFound(goal, dtype, goal.measure(rows, dtype, at)) for goal in goals for dtype in goal.dtypes]


def bandwidth_share(
    rows: Rows, variant: str, dtype: str, at: MeasuredAt, work: str = "reverse_kl"
) -> float | None:
    """The least traffic of a divergence (two reads, one write) in its time, over what copying reaches."""
    milliseconds = cell(rows, "milliseconds", variant, dtype, at, work)
    copied = [row["figure"] for row in rows if (row["work"], row["variant"]) == ("machine", "copy")]
    traffic = 3 * at.tokens * at.vocab * {"float32": 4, "bfloat16": 2}[dtype] / 1e9  # GB
    return ratio(ratio(traffic, milliseconds and milliseconds / 1e3), copied[0] if copied else None)
