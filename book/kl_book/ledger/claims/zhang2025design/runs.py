"""Sections 5, H and I: what the printed numbers and letters say (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import excess, violation, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.printed_accuracies import (
    AIME,
    FIGURE_2,
    FIGURE_2_TITLES,
    GRPO_CLIP,
    PANELS,
    PANELS_OF_THE_TEXT,
    REINFORCE,
    REINFORCE_UFKL,
    REINFORCE_URKL,
    UFKL,
    Score,
    column,
    columns,
    scores,
)

QUESTIONS = 960  # answers that a Mean@32 of AIME counts: 30 problems, 32 answers each
CONTEXT = (3, 5, 6)  # the tables of the 8K, 4K and 2K runs that the text speaks of


def _last_above_best(found: Iterable[Score]) -> float:
    """By how much the last value of a run exceeds the best one."""
    return violation(*(s.last - s.best for s in found))


@claim("RPG-tab5")
def last_and_best() -> Iterator[Found]:
    """In none of these tables a last value exceeds the best value of its run."""
    yield from each_form(_last_above_best(scores(5, 6, 7, 8)))


@claim("RPG-tab3")
def last_and_best_at_8k() -> Iterator[Found]:
    """One last value exceeds the best one of its run, the other 17 do not."""
    cells = scores(3)
    wrong = max(cells, key=lambda s: s.last - s.best)
    others = [s for s in cells if s != wrong]
    right_answers = wrong.last * QUESTIONS
    yield from each_form(
        _last_above_best(cells),
        violation(*(s.last - s.best for s in others)),
        number_of_others=len(others),
        method=wrong.method,
        benchmark=wrong.benchmark,
        last=wrong.last,
        best=wrong.best,
        QUESTIONS=QUESTIONS,
        right_answers=right_answers,
    )


def _top(table: int, benchmark: str, which: str, place: int = 0) -> str:
    """The method with the largest number of a column, or the one at another place."""
    found = column(table, benchmark, which)
    return sorted(found, key=lambda method: -found[method])[place]


def _misses(said: Iterable[tuple[int, str, str, int, str]]) -> float:
    """How many of "this method has this place in this column" are wrong."""
    return float(sum(_top(t, b, which, place) != method for t, b, which, place, method in said))


@claim("RPG-I1-4k")
def places_at_4k() -> Iterator[Found]:
    """As the table has them."""
    said = [
        (5, "AIME24", "last", 0, REINFORCE_URKL),
        (5, "AIME24", "best", 0, REINFORCE_URKL),
        (5, "AIME24", "last", 1, REINFORCE_UFKL),
        (5, "AIME25", "best", 0, REINFORCE_URKL),
        (5, "AIME25", "last", 0, REINFORCE_URKL),
        (5, "AIME25", "best", 1, REINFORCE_UFKL),
        (5, "AIME25", "last", 1, REINFORCE_UFKL),
    ]
    numbers = [
        abs(column(5, "AIME24", "last")[REINFORCE_URKL] - 0.4458),
        abs(column(5, "AIME24", "best")[REINFORCE_URKL] - 0.4531),
        abs(column(5, "AIME25", "best")[REINFORCE_URKL] - 0.4313),
    ]
    yield from each_form(worst([_misses(said), *numbers]))


@claim("RPG-I1-2k")
def places_at_2k() -> Iterator[Found]:
    """As the table has them."""
    said = [
        (6, "AIME24", "best", 0, REINFORCE_UFKL),
        (6, "AIME25", "best", 0, REINFORCE_UFKL),
        (6, "AIME25", "last", 0, REINFORCE_UFKL),
        (6, "AIME24", "last", 0, UFKL),
        (6, "AIME25", "last", 1, UFKL),
    ]
    numbers = [
        abs(column(6, "AIME24", "best")[REINFORCE_UFKL] - 0.3625),
        abs(column(6, "AIME25", "best")[REINFORCE_UFKL] - 0.3083),
        abs(column(6, "AIME25", "last")[REINFORCE_UFKL] - 0.2927),
    ]
    yield from each_form(worst([_misses(said), *numbers]))


def _gain(table: int, benchmark: str, which: str) -> float:
    """Points by which the better RPG-REINFORCE variant is above DAPO."""
    found = column(table, benchmark, which)
    return 100 * (max(x for method, x in found.items() if method.startswith(REINFORCE)) - found["DAPO"])


@claim("RPG-abs-6")
def the_largest_gain_over_dapo() -> Iterator[Found]:
    """It rounds to 6 points, over the tables of all context lengths."""
    gains = {x: _gain(*x) for x in columns(*CONTEXT) if x[1] in AIME}
    (table, benchmark, which), largest = max(gains.items(), key=lambda item: item[1])
    yield from each_form(
        excess(largest, "6"),
        largest=largest,
        table=table,
        benchmark=benchmark,
        which=which,
        number_of_gains=len(gains),
        number=sum(gains.values()) / len(gains),
    )


@claim("RPG-5-across")
def the_strongest_results_across_settings() -> Iterator[Found]:
    """Half of the columns of Tables 3, 5 and 6 have another method on top; all have an RPG variant there."""
    every = columns(*CONTEXT)
    beaten = [not _top(*x).startswith(REINFORCE) for x in every]
    lost = [not _top(*x).startswith("RPG") for x in every]
    aime = [not _top(*x).startswith(REINFORCE) for x in every if x[1] in AIME]
    yield from each_form(
        share_of_cases(beaten),
        share_of_cases(lost),
        number=len(beaten) - sum(beaten),
        number_of_beaten=len(beaten),
        top=_top(3, "AIME24", "best"),
        number_2=column(3, "AIME24", "best")[UFKL],
        max=max(x for m, x in column(3, "AIME24", "best").items() if m.startswith(REINFORCE)),
        number_3=len(aime) - sum(aime),
        number_of_aime=len(aime),
        sum=sum(_top(*x).startswith(REINFORCE) for x in columns(7)),
        number_4=len(columns(7)),
        sum_2=sum(_top(*x).startswith(REINFORCE) for x in columns(8)),
        number_5=len(columns(8)),
    )


@claim("RPG-5-subfigures")
def the_panels_of_the_figures() -> Iterator[Found]:
    """The letters in the text are those of figures with one benchmark less."""
    wrong = [PANELS_OF_THE_TEXT[name] != letter for name, letter in PANELS.items()]
    shifted = {
        name: chr(ord(letter) + 1) if len(letter) == 1 else f"{letter}c"
        for name, letter in PANELS_OF_THE_TEXT.items()
    }
    yield from each_form(
        float(sum(wrong)),
        float(sum(shifted[name] != letter for name, letter in PANELS.items())),
        sum_of_wrong=sum(wrong),
        number_of_wrong=len(wrong),
    )


@claim("RPG-H-grpo-clip")
def the_clip_range_of_grpo_in_the_appendix() -> Iterator[Found]:
    """Section 5 and the released scripts have another one."""
    said, others = GRPO_CLIP["appendix H"], [x for place, x in GRPO_CLIP.items() if place != "appendix H"]
    yield from each_form(
        float(sum(x != said for x in others)),
        float(sum(x != GRPO_CLIP["section 5"] for x in others)),
        number=GRPO_CLIP["section 5"][0],
        number_2=GRPO_CLIP["section 5"][1],
        said_0=said[0],
        said_1=said[1],
    )


@claim("RPG-5-grpo-clip")
def the_clip_range_of_grpo() -> Iterator[Found]:
    """That of the released scripts."""
    low, high = GRPO_CLIP["section 5"]
    wanted = GRPO_CLIP["scripts"]
    yield from each_form(worst((abs(low - wanted[0]), abs(high - wanted[1]))))


@claim("RPG-fig2-caption")
def the_signs_of_the_panels() -> Iterator[Found]:
    """The caption says A = 1 and A < 0 of the same panel."""
    numbers, cases = FIGURE_2["for visualization"], FIGURE_2["cases"]
    wrong = [numbers[panel] != cases[panel] for panel in cases]
    titles = {"left": FIGURE_2_TITLES["case A < 0"], "right": FIGURE_2_TITLES["case A >= 0"]}
    yield from each_form(
        float(sum(wrong)),
        float(sum(-numbers[panel] != titles[panel] for panel in titles)),
        numbers_left=numbers["left"],
        numbers_right=numbers["right"],
    )
