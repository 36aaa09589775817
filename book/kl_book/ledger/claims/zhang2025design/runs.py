"""Sections 5, H and I: what the printed numbers and letters say (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterable

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
from kl_book.ledger.claims.ledger import Evidence, claim

QUESTIONS = 960  # answers that a Mean@32 of AIME counts: 30 problems, 32 answers each
CONTEXT = (3, 5, 6)  # the tables of the 8K, 4K and 2K runs that the text speaks of


def _last_above_best(found: Iterable[Score]) -> float:
    """By how much the last value of a run exceeds the best one."""
    return violation(*(s.last - s.best for s in found))


@claim("RPG-tab5", "RPG-tab6", "RPG-tab7", "RPG-tab8", how="text")
def last_and_best() -> Evidence:
    """In none of these tables a last value exceeds the best value of its run."""
    return Evidence(
        _last_above_best(scores(5, 6, 7, 8)), note="The accuracies themselves take training runs."
    )


@claim("RPG-tab3", how="text")
def last_and_best_at_8k() -> Evidence:
    """One last value exceeds the best one of its run, the other 17 do not."""
    cells = scores(3)
    wrong = max(cells, key=lambda s: s.last - s.best)
    others = [s for s in cells if s != wrong]
    right_answers = wrong.last * QUESTIONS
    return Evidence(
        _last_above_best(cells),
        violation(*(s.last - s.best for s in others)),
        unit="difference",
        correction=f"In the other {len(others)} pairs of the table no last value exceeds the best one.",
        counterexample=(
            f"{wrong.method} on {wrong.benchmark}: the last accuracy is {wrong.last:.4f}, the best one of "
            f"the same run {wrong.best:.4f}"
        ),
        practice=(
            f"It is the largest last value of its column. As a mean over {QUESTIONS} answers "
            f"{wrong.last:.4f} cannot occur either: it would be {right_answers:.2f} right ones. Which number "
            "was meant cannot be told."
        ),
    )


def _top(table: int, benchmark: str, which: str, place: int = 0) -> str:
    """The method with the largest number of a column, or the one at another place."""
    found = column(table, benchmark, which)
    return sorted(found, key=lambda method: -found[method])[place]


def _misses(said: Iterable[tuple[int, str, str, int, str]]) -> float:
    """How many of "this method has this place in this column" are wrong."""
    return float(sum(_top(t, b, which, place) != method for t, b, which, place, method in said))


@claim("RPG-I1-4k", how="text")
def places_at_4k() -> Evidence:
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
    return Evidence(worst([_misses(said), *numbers]), note="Compared with Table 5.")


@claim("RPG-I1-2k", how="text")
def places_at_2k() -> Evidence:
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
    return Evidence(worst([_misses(said), *numbers]), note="Compared with Table 6.")


def _gain(table: int, benchmark: str, which: str) -> float:
    """Points by which the better RPG-REINFORCE variant is above DAPO."""
    found = column(table, benchmark, which)
    return 100 * (max(x for method, x in found.items() if method.startswith(REINFORCE)) - found["DAPO"])


@claim("RPG-abs-6", how="text")
def the_largest_gain_over_dapo() -> Evidence:
    """It rounds to 6 points, over the tables of all context lengths."""
    gains = {x: _gain(*x) for x in columns(*CONTEXT) if x[1] in AIME}
    (table, benchmark, which), largest = max(gains.items(), key=lambda item: item[1])
    return Evidence(
        excess(largest, "6"),
        note=(
            f"The largest is {largest:.2f} points (Table {table}, {benchmark}, {which}); of {len(gains)} "
            f"differences the mean is {sum(gains.values()) / len(gains):.1f}. One run each."
        ),
    )


@claim("RPG-5-across", how="text")
def the_strongest_results_across_settings() -> Evidence:
    """Half of the columns of Tables 3, 5 and 6 have another method on top; all have an RPG variant there."""
    every = columns(*CONTEXT)
    beaten = [not _top(*x).startswith(REINFORCE) for x in every]
    lost = [not _top(*x).startswith("RPG") for x in every]
    aime = [not _top(*x).startswith(REINFORCE) for x in every if x[1] in AIME]
    return Evidence(
        share_of_cases(beaten),
        share_of_cases(lost),
        unit="share of cases",
        correction=(
            "An RPG variant, differentiated or in the style of REINFORCE, has the largest number of every "
            f"column of Tables 3, 5 and 6; one in the style of REINFORCE in {len(beaten) - sum(beaten)} of "
            f"{len(beaten)}."
        ),
        counterexample=(
            f"AIME24 at 8K: {_top(3, 'AIME24', 'best')} has the best accuracy, "
            f"{column(3, 'AIME24', 'best')[UFKL]:.4f}, and RPG-REINFORCE at most "
            f"{max(x for m, x in column(3, 'AIME24', 'best').items() if m.startswith(REINFORCE)):.4f}"
        ),
        practice=(
            f"On AIME alone {len(aime) - sum(aime)} of {len(aime)} columns have RPG-REINFORCE on top; in "
            f"Table 7 {sum(_top(*x).startswith(REINFORCE) for x in columns(7))} of {len(columns(7))}, in "
            "Table 8 "
            f"{sum(_top(*x).startswith(REINFORCE) for x in columns(8))} of {len(columns(8))}."
        ),
    )


@claim("RPG-5-subfigures", how="text")
def the_panels_of_the_figures() -> Evidence:
    """The letters in the text are those of figures with one benchmark less."""
    wrong = [PANELS_OF_THE_TEXT[name] != letter for name, letter in PANELS.items()]
    shifted = {
        name: chr(ord(letter) + 1) if len(letter) == 1 else f"{letter}c"
        for name, letter in PANELS_OF_THE_TEXT.items()
    }
    return Evidence(
        float(sum(wrong)),
        float(sum(shifted[name] != letter for name, letter in PANELS.items())),
        unit="places in the text",
        agrees_with="proof",
        correction=(
            "Reward and entropy are subfigures (d) and (e), response length is (f), and the benchmarks are "
            "(a) to (c)."
        ),
        counterexample=(
            f"{sum(wrong)} of {len(wrong)} references: by the captions of figures 5 and 6 subfigure (c) is "
            "AMC23 and (d) the reward"
        ),
        practice="Nothing for a training run: who looks for the entropy finds the reward.",
    )


@claim("RPG-H-grpo-clip", how="text")
def the_clip_range_of_grpo_in_the_appendix() -> Evidence:
    """Section 5 and the released scripts have another one."""
    said, others = GRPO_CLIP["appendix H"], [x for place, x in GRPO_CLIP.items() if place != "appendix H"]
    return Evidence(
        float(sum(x != said for x in others)),
        float(sum(x != GRPO_CLIP["section 5"] for x in others)),
        unit="places in the text",
        agrees_with="RPG-5-grpo-clip",
        correction=r"$(\epsilon_1, \epsilon_2) = (0.2, 0.2)$, as in section 5.",
        counterexample=(
            f"section 5 prints {GRPO_CLIP['section 5'][0]} and {GRPO_CLIP['section 5'][1]}, appendix H, with "
            f"reference to section 5, {said[0]} and {said[1]}"
        ),
        practice=(
            "The released scripts of GRPO, all for 7B models, have 0.2 and 0.2. Those of the 4B model "
            "are not released."
        ),
    )


@claim("RPG-5-grpo-clip", how="text")
def the_clip_range_of_grpo() -> Evidence:
    """That of the released scripts."""
    low, high = GRPO_CLIP["section 5"]
    wanted = GRPO_CLIP["scripts"]
    return Evidence(
        worst((abs(low - wanted[0]), abs(high - wanted[1]))),
        note="Commit ec8e30b has scripts of GRPO for 7B models only. Appendix H prints (0.1, 0.1).",
    )


@claim("RPG-fig2-caption", how="text")
def the_signs_of_the_panels() -> Evidence:
    """The caption says A = 1 and A < 0 of the same panel."""
    numbers, cases = FIGURE_2["for visualization"], FIGURE_2["cases"]
    wrong = [numbers[panel] != cases[panel] for panel in cases]
    titles = {"left": FIGURE_2_TITLES["case A < 0"], "right": FIGURE_2_TITLES["case A >= 0"]}
    return Evidence(
        float(sum(wrong)),
        float(sum(-numbers[panel] != titles[panel] for panel in titles)),
        unit="places in the text",
        agrees_with="proof",
        correction="$A = -1$ in the left panel and $A = 1$ in the right one, as their titles say.",
        counterexample=(
            f"of the left panel the caption says $A = {numbers['left']}$ and, at its end, the case $A < 0$; "
            f"of the right panel $A = {numbers['right']}$ and the case $A \\ge 0$"
        ),
        practice="Nothing for a training run; the titles of the panels are right.",
    )
