"""Tables 2, 3 and 4 of section 6 and appendix B: averages and improvements recomputed (emapg2026).

Printed numbers are rounded. Where a result misses what the printed scores give, the check asks whether any
scores that round to the printed ones give it: only then was it computed before rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import Found, inside, numbers, printed
from kl_book.ledger.claims.ground import printed_results as paper
from kl_book.ledger.claims.ground.errors import excess
from kl_book.ledger.claims.ground.printed_results import mean_score, percent_above, printed_cells, scores


def share(base: float, theirs: float, ours: float) -> float:
    """Percent of the way from base to GRPO that EMA-PG adds, as the caption of table 3 has it."""
    return 100 * (ours - theirs) / (theirs - base)


def reached(result: Callable[..., float], *rounded: float) -> tuple[float, float]:
    """Lowest and highest result of all scores that round to ``rounded``.

    The results here rise or fall in each score, so that the extremes are at the corners.
    """
    ends = itertools.product(*((x - paper.HALF_A_UNIT, x + paper.HALF_A_UNIT) for x in rounded))
    corners = [result(*c) for c in ends]
    return min(corners), max(corners)


def unreachable(result: Callable[..., float], printed: str, *rounded: float) -> float:
    """How far `reached` stays from what rounds to ``printed``."""
    low, high = reached(result, *rounded)
    return excess(min(max(float(printed), low), high), printed)


def averages(table: int) -> Iterator[Found]:
    """Every row's last column is the mean of the seven before it."""
    rows = [name for name in paper.TABLES[table][0] if name != paper.GAIN]
    for row in rows:
        yield printed(
            excess(mean_score(list(scores(table, row).values())[:-1]), printed_cells(table, row)["Avg."])
        )
    yield numbers(rows=len(rows))


claim_rows(averages, {"EMA-tab2-average": [2], "EMA-tab4-average": [4]})


@claim("EMA-tab3-Average")
def averages_of_table_3() -> Iterator[Found]:
    """Three means of six scores."""
    for column in paper.MATH_COLUMNS[:3]:
        mean = mean_score(scores(3, row)[column] for row in paper.MATH_SETS)
        yield printed(excess(mean, printed_cells(3, "Average")[column]))


def gains(table: int, ours: str) -> dict[str, float]:
    """Improvements set by set from the printed scores."""
    above, below = scores(table, ours), scores(table, paper.GRPO)
    return {s: percent_above(above[s], below[s]) for s in paper.SETS[:-1]}


@claim("EMA-tab2-Improvement")
def improvements_of_table_2() -> Iterator[Found]:
    """Seven relative gains of the reverse form over GRPO, each within the rounding of the scores."""
    above, below, cells = scores(2, paper.REVERSE), scores(2, paper.GRPO), printed_cells(2, paper.GAIN)
    for s in paper.SETS[:-1]:
        yield printed(unreachable(percent_above, cells[s], above[s], below[s]))
    direct = gains(2, paper.REVERSE)
    at = max(direct, key=lambda s: excess(direct[s], cells[s]))
    forward = {s: x for s, x in gains(2, paper.FORWARD).items() if x > direct[s]}
    yield numbers(
        at=at,
        ours=printed_cells(2, paper.REVERSE)[at],
        theirs=printed_cells(2, paper.GRPO)[at],
        from_rounded=direct[at],
        in_the_table=cells[at],
        forward=[f"{s} {x:.1f}%" for s, x in forward.items()],
    )


@claim("EMA-tab4-Improvement")
def improvements_of_table_4() -> Iterator[Found]:
    """Seven relative gains, on the instruct model."""
    for s, gain in gains(4, paper.INSTRUCT).items():
        yield printed(excess(gain, printed_cells(4, paper.GAIN)[s]))


def average_gains(table: int, ours: str) -> dict[str, float]:
    """Gains of the printed averages, of the averages of printed scores, and the mean of the gains."""
    above, below = (list(scores(table, row).values()) for row in (ours, paper.GRPO))
    return {
        "of_printed": percent_above(above[-1], below[-1]),
        "of_scores": percent_above(mean_score(above[:-1]), mean_score(below[:-1])),
        "mean_of_gains": mean_score(gains(table, ours).values()),
    }


def average_gain(row: tuple[int, str]) -> Iterator[Found]:
    """The last cell of the gains compares two averages."""
    three = average_gains(*row)
    yield printed(excess(three.pop("of_printed"), printed_cells(row[0], paper.GAIN)["Avg."]))
    yield numbers(**three)


claim_rows(
    average_gain,
    {
        "EMA-tab2-Improvement-average": [(2, paper.REVERSE)],
        "EMA-tab4-Improvement-average": [(4, paper.INSTRUCT)],
    },
)


@claim("EMA-abstract-average")
def an_average_of_a_third() -> Iterator[Found]:
    """33.3% is the gain of the average score; the average of the gains is almost twice as large."""
    three = average_gains(2, paper.REVERSE)
    for percent in paper.AVERAGE_GAIN.values():
        yield inside(excess(three["of_printed"], percent))
        yield printed(excess(three["mean_of_gains"], percent))
    above, below = (100 * scores(2, row)["Avg."] for row in (paper.REVERSE, paper.GRPO))
    yield numbers(mean_of_gains=three["mean_of_gains"], points=above - below, below=below, above=above)


def three_scores(s: str) -> tuple[list[float], str]:
    """Base model, GRPO and EMA-PG on a set of table 3, and the printed share."""
    *three, percent = printed_cells(3, s).values()
    return [float(x) for x in three], percent


@claim("EMA-tab3-relative")
def relative_improvements_of_table_3() -> Iterator[Found]:
    """Six shares of GRPO's own gain, each within the rounding of the scores."""
    for s in paper.MATH_SETS:
        three, percent = three_scores(s)
        yield printed(unreachable(share, percent, *three))
    at = max(paper.MATH_SETS, key=lambda s: excess(share(*three_scores(s)[0]), three_scores(s)[1]))
    three, percent = three_scores(at)
    n = paper.answers_per_aime_set()
    of_multiples = share(*(round(x * n) / n for x in three))
    yield printed(excess(of_multiples, percent))
    low, high = reached(share, *three)
    yield numbers(
        at=at, from_rounded=share(*three), n=n, of_multiples=of_multiples, percent=percent, low=low, high=high
    )


@claim("EMA-tab3-relative-average")
def average_relative_improvement_of_table_3() -> Iterator[Found]:
    """34% from the printed averages; by table 2's definition the same averages are 5% apart."""
    averages, percent = three_scores("Average")
    yield printed(excess(share(*averages), percent))


@words("EMA-tab3-relative-average")
def other_definitions() -> dict[str, Any]:
    """The mean of the six shares, and each table's gain by the other table's definition."""
    _, theirs, ours = three_scores("Average")[0]
    return {
        "mean_of_shares": mean_score(share(*three_scores(s)[0]) for s in paper.MATH_SETS),
        "as_in_table_2": percent_above(ours, theirs),
        "as_in_table_3": share(
            *(scores(2, row)["Avg."] for row in ("before-RL-3B-Base", paper.GRPO, paper.REVERSE))
        ),
    }
