"""Tables 2, 3 and 4 of section 6 and appendix B: averages and improvements recomputed (emapg2026).

Printed numbers are rounded. Where a result misses what the printed scores give, the check asks whether any
scores that round to the printed ones give it: only then was it computed before rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.errors import excess, worst
from kl_book.ledger.claims.ground.printed_results import (
    AVERAGE_GAIN,
    FORWARD,
    GAIN,
    GRPO,
    INSTRUCT,
    MATH_COLUMNS,
    REVERSE,
    SETS,
)
from kl_book.ledger.claims.ground.scores import (
    HALF_A_UNIT,
    MATH_SETS,
    TABLES,
    answers_per_aime_set,
    mean_score,
    percent_above,
    printed_cells,
    scores,
)


def share(base: float, theirs: float, ours: float) -> float:
    """Percent of the way from base to GRPO that EMA-PG adds, as the caption of table 3 has it."""
    return 100 * (ours - theirs) / (theirs - base)


def unreachable(result: Callable[..., float], printed: str, *rounded: float) -> float:
    """How far the results of all scores that round to ``rounded`` stay from what rounds to ``printed``.

    The results here rise or fall in each score, so that the extremes are at the corners.
    """
    corners = [result(*c) for c in itertools.product(*((x - HALF_A_UNIT, x + HALF_A_UNIT) for x in rounded))]
    low, high = min(corners), max(corners)
    nearest = min(max(float(printed), low), high)
    return excess(nearest, printed)


def _of_their_columns(table: int) -> Evidence:
    """Every row's last column is the mean of the seven before it."""
    names = [name for name in TABLES[table][0] if name != GAIN]
    return Evidence(
        worst(
            excess(mean_score(list(scores(table, n).values())[:-1]), printed_cells(table, n)["Avg."])
            for n in names
        ),
        note=f"recomputed from the printed scores of {len(names)} rows; small sets count like large ones",
    )


@claim("EMA-tab2-average")
def averages_of_table_2() -> Evidence:
    """Eleven means of seven scores."""
    return _of_their_columns(2)


@claim("EMA-tab4-average")
def averages_of_table_4() -> Evidence:
    """Four means of seven scores."""
    return _of_their_columns(4)


@claim("EMA-tab3-Average")
def averages_of_table_3() -> Iterator[Found]:
    """Three means of six scores."""
    printed = printed_cells(3, "Average")
    yield from each_form(
        worst(excess(mean_score(scores(3, s)[c] for s in MATH_SETS), printed[c]) for c in MATH_COLUMNS[:3])
    )


def _gains(table: int, ours: str) -> tuple[dict[str, float], dict[str, float]]:
    """Errors of the printed improvements set by set: from the printed scores, and from any behind them."""
    above, below, said = scores(table, ours), scores(table, GRPO), printed_cells(table, GAIN)
    direct = {s: excess(percent_above(above[s], below[s]), said[s]) for s in SETS[:-1]}
    return direct, {s: unreachable(percent_above, said[s], above[s], below[s]) for s in SETS[:-1]}


@claim("EMA-tab2-Improvement")
def improvements_of_table_2() -> Iterator[Found]:
    """Seven relative gains of the reverse form over GRPO, each within the rounding of the scores."""
    direct, before = _gains(2, REVERSE)
    at = max(direct, key=lambda s: direct[s])
    ours, theirs = printed_cells(2, REVERSE)[at], printed_cells(2, GRPO)[at]
    rows = (FORWARD, REVERSE)
    best = {s: max(rows, key=lambda r, s=s: scores(2, r)[s]) for s in SETS[:-1]}  # type: ignore[misc]
    ahead = [
        f"{s} {percent_above(scores(2, r)[s], scores(2, GRPO)[s]):.1f}%"
        for s, r in best.items()
        if r == FORWARD
    ]
    yield from each_form(
        worst(before.values()),
        at=at,
        ours=ours,
        theirs=theirs,
        percent_above=percent_above(float(ours), float(theirs)),
        number=printed_cells(2, GAIN)[at],
        number_2=", ".join(ahead),
    )


@claim("EMA-tab4-Improvement")
def improvements_of_table_4() -> Iterator[Found]:
    """Seven relative gains, on the instruct model."""
    yield from each_form(worst(_gains(4, INSTRUCT)[0].values()))


def _three_averages(table: int, ours: str) -> tuple[float, float, float]:
    """Gains of the printed averages, of the averages of printed scores, and the mean of the gains."""
    above, below = (list(scores(table, r).values()) for r in (ours, GRPO))
    each = mean_score(percent_above(a, b) for a, b in zip(above[:-1], below[:-1], strict=True))
    return (
        percent_above(above[-1], below[-1]),
        percent_above(mean_score(above[:-1]), mean_score(below[:-1])),
        each,
    )


def _average_gain(table: int, ours: str) -> Evidence:
    rounded, whole, each = _three_averages(table, ours)
    return Evidence(
        excess(rounded, printed_cells(table, GAIN)["Avg."]),
        note=(
            f"it compares the two printed averages; {whole:.1f}% from the averages of the printed scores, "
            f"and {each:.1f}% is the mean of the seven gains"
        ),
    )


@claim("EMA-tab2-Improvement-average")
def average_improvement_of_table_2() -> Evidence:
    """The last cell compares two averages."""
    return _average_gain(2, REVERSE)


@claim("EMA-tab4-Improvement-average")
def average_improvement_of_table_4() -> Evidence:
    """The same on the instruct model."""
    return _average_gain(4, INSTRUCT)


@claim("EMA-abstract-average")
def an_average_of_a_third() -> Iterator[Found]:
    """33.3% is the gain of the average score; the average of the gains is almost twice as large."""
    rounded, _, each = _three_averages(2, REVERSE)
    above, below = (scores(2, r)["Avg."] for r in (REVERSE, GRPO))
    said = AVERAGE_GAIN.values()
    yield from each_form(
        worst(excess(x, p) for x in (rounded, each) for p in said),
        inside=worst(excess(rounded, p) for p in said),
        each=each,
        number=100 * (above - below),
        number_2=100 * below,
        number_3=100 * above,
    )


def _shares() -> tuple[dict[str, float], dict[str, float]]:
    """Errors of table 3's last column: from the printed scores, and from any behind them."""
    direct, before = {}, {}
    for s in MATH_SETS:
        *three, printed = printed_cells(3, s).values()
        direct[s] = excess(share(*map(float, three)), printed)
        before[s] = unreachable(share, printed, *map(float, three))
    return direct, before


@claim("EMA-tab3-relative")
def relative_improvements_of_table_3() -> Iterator[Found]:
    """Six shares of GRPO's own gain, each within the rounding of the scores."""
    direct, before = _shares()
    at = max(direct, key=lambda s: direct[s])
    *three, printed = printed_cells(3, at).values()
    n = answers_per_aime_set()
    base, theirs, ours = (round(float(x) * n) / n for x in three)
    yield from each_form(
        max(worst(before.values()), excess(share(base, theirs, ours), printed)),
        at=at,
        share=share(*map(float, three)),
        n=n,
        share_base=share(base, theirs, ours),
        printed_value=printed,
        range_of_shares_three=_range_of_shares(three),
    )


def _range_of_shares(three: list[str]) -> str:
    ends = itertools.product(*((float(x) - HALF_A_UNIT, float(x) + HALF_A_UNIT) for x in three))
    found = [share(*c) for c in ends]
    return f"{min(found):.0f}% to {max(found):.0f}%"


@claim("EMA-tab3-relative-average")
def average_relative_improvement_of_table_3() -> Iterator[Found]:
    """34% from the printed averages; by table 2's definition the same averages are 5% apart."""
    base, theirs, ours = (scores(3, "Average")[c] for c in MATH_COLUMNS[:3])
    each = mean_score(share(*list(scores(3, s).values())[:3]) for s in MATH_SETS)
    search = (scores(2, r)["Avg."] for r in ("before-RL-3B-Base", GRPO, REVERSE))
    yield from each_form(
        excess(share(base, theirs, ours), printed_cells(3, "Average")["relative"]),
        each=each,
        percent_above_ours=percent_above(ours, theirs),
        share=share(*search),
    )
