"""What text and captions say about the tables of results, against the tables (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterable

from kl_companion.claims.emapg2026.printed_results import (
    ABSTRACT,
    ANCHOR,
    FORWARD,
    GAIN,
    GENERAL,
    GRPO,
    INSTRUCT,
    MATH_SETS_OF_THE_CAPTION,
    MATH_SETS_OF_THE_TEXT,
    MULTI_HOP,
    PERIOD,
    REVERSE,
    SEARCH_SETS_OF_THE_TEXT,
    SECTION_6,
    SETS,
    TABLE_2,
    VOCABULARIES,
    VOCABULARY,
    Quote,
)
from kl_companion.claims.emapg2026.reported_tables import HALF, MATH_SETS, cells, scores
from kl_companion.claims.emapg2026.synthetic_task import VOCAB
from kl_companion.claims.ledger import Evidence, claim, excess, violation
from kl_companion.claims.worlds import worst

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
AIME = ("AIME 2024", "AIME 2025")
SINGLE = "single numbers, printed without a spread and without the number of runs"


def _misquoted(quotes: tuple[Quote, ...]) -> float:
    return worst(excess(100 * scores(q.table, q.row)[q.column], q.percent) for q in quotes)


@claim("EMA-abstract-numbers-tables")
def quotes_of_abstract_and_introduction() -> Evidence:
    """Eight percentages are cells of tables 2 and 3."""
    return Evidence(_misquoted(ABSTRACT), condition="EMA-PG on search is the row of the top-k reverse KL")


@claim("EMA-6-numbers")
def quotes_of_section_6() -> Evidence:
    """Seven percentages are cells of tables 2 and 3."""
    return Evidence(_misquoted(SECTION_6))


@claim("EMA-tab3-sets")
def six_math_sets() -> Evidence:
    """As many sets as the caption counts."""
    return Evidence(float(len(MATH_SETS) != NUMBERS.index(MATH_SETS_OF_THE_CAPTION)))


@claim("EMA-exp-math-sets")
def the_sets_that_the_text_lists() -> Evidence:
    """Section 6 lists five of the six."""
    apart = {*MATH_SETS} ^ {*MATH_SETS_OF_THE_TEXT}
    return Evidence(
        float(len(apart)),
        float(len({*MATH_SETS} ^ {*MATH_SETS_OF_THE_TEXT, "AMC 2024"})),
        agrees_with="EMA-tab3-sets",
        correction="AMC 2024 belongs to the list as well; of AMC, the training set has problems before 2023",
        counterexample=f"{', '.join(sorted(apart))} has a row in table 3 and a part in its average",
    )


@claim("EMA-exp-search-sets")
def the_search_sets_that_the_text_lists() -> Evidence:
    """Three general and four multi-hop sets, as in the head of table 2."""
    head = {"general": GENERAL, "multi-hop": MULTI_HOP}
    return Evidence(float(sum({*head[k]} != {*SEARCH_SETS_OF_THE_TEXT[k]} for k in head)))


def _behind(table: int, ours: str, theirs: Iterable[str], columns: Iterable[str]) -> dict[str, float]:
    """By how much a row fails to be above others, by column."""
    above = scores(table, ours)
    return {c: violation(*(scores(table, r)[c] - above[c] + HALF for r in theirs)) for c in columns}


def fits(score: str, questions: int) -> bool:
    """Whether a whole number of right answers to so many questions rounds to the printed score."""
    return excess(round(float(score) * questions) / questions, score) <= 1e-12


def three(row: str) -> list[str]:
    """The three scores of a row of table 3, as they are printed."""
    return list(cells(3, row).values())[:3]


@claim("EMA-tab3-every")
def better_on_every_math_set() -> Evidence:
    """EMA-PG above GRPO, row by row."""
    found = [violation(scores(3, s)["GRPO"] - scores(3, s)["EMA-PG"] + HALF) for s in MATH_SETS]
    theirs, ours = (scores(3, "AIME 2025")[c] for c in ("GRPO", "EMA-PG"))
    draws = 30 * next(n for n in range(1, 100) if all(fits(x, 30 * n) for s in AIME for x in three(s)))
    noise = sum(x * (1 - x) / draws for x in (theirs, ours)) ** 0.5
    return Evidence(
        worst(found),
        condition=(
            f"{SINGLE}. The AIME scores fit 30 problems with {draws // 30} samples each and no "
            f"smaller number; as {draws} independent draws the {ours - theirs:.3f} on AIME 2025 would have a "
            f"standard error of {noise:.3f}"
        ),
    )


@claim("EMA-tab2-excels")
def above_every_other_method() -> Evidence:
    """The reverse form above all prompting and other RL rows, column by column."""
    others = [r for r in TABLE_2 if r not in (FORWARD, REVERSE, GAIN)]
    nearest = min((scores(2, REVERSE)[s] - scores(2, r)[s], s, r) for r in others for s in SETS)
    return Evidence(
        worst(_behind(2, REVERSE, others, SETS).values()),
        condition=(
            f"the reverse form; the closest is {nearest[1]}, {nearest[0]:.3f} above {nearest[2]}; {SINGLE}"
        ),
    )


def _on_average(ours: str, theirs: str) -> Evidence:
    """A comparison for which the source gives averages; the sets that go the other way are named."""
    found = _behind(2, ours, [theirs], SETS)
    lost = [f"{s} {cells(2, ours)[s]} against {cells(2, theirs)[s]}" for s in SETS if found[s] > 0]
    return Evidence(
        found["Avg."],
        condition=f"on average, as its numbers are; the other way round: {'; '.join(lost) or 'no set'}",
    )


@claim("EMA-6-topk-forward-gain")
def forward_top_k_beside_sampled_k3() -> Evidence:
    """34.8 to 40.6 on average; two of the seven sets lose."""
    return _on_average(FORWARD, ANCHOR)


@claim("EMA-6-topk-reverse-gain")
def reverse_top_k_beside_sampled_k3() -> Evidence:
    """34.8 to 41.6 on average; no set loses."""
    return _on_average(REVERSE, ANCHOR)


@claim("EMA-6-reverse-better")
def reverse_beside_forward() -> Evidence:
    """41.6 against 40.6 on average; one of the seven sets loses."""
    return _on_average(REVERSE, FORWARD)


@claim("EMA-6-anchor-gain")
def anchor_and_warp_beside_grpo() -> Evidence:
    """WARP below GRPO, the EMA anchor above it, on every set."""
    return Evidence(
        max(
            worst(_behind(2, GRPO, ["WARP"], SETS).values()),
            worst(_behind(2, ANCHOR, [GRPO], SETS).values()),
        ),
        condition=(
            "the numbers; WARP differs from the anchor's row in more than the level of its KL, and so they "
            "do not tell which difference counts (EMA-5.1-empirical)"
        ),
    )


@claim("EMA-fig5-final")
def both_forms_end_above() -> Evidence:
    """Final averages of both top-k forms above GRPO and GRPO with an EMA anchor."""
    rows = [_behind(2, r, [GRPO, ANCHOR], ["Avg."])["Avg."] for r in (FORWARD, REVERSE)]
    return Evidence(worst(rows), condition="final averages of table 2; the curves are not given as numbers")


@claim("EMA-tab4-gain")
def smaller_gain_on_the_instruct_model() -> Evidence:
    """Above GRPO on every set, by less than on the base model on every set."""
    ahead = _behind(4, INSTRUCT, [GRPO], SETS)
    smaller = [violation(float(cells(4, GAIN)[s]) - float(cells(2, GAIN)[s]) + 0.05) for s in SETS]
    return Evidence(max(worst(ahead.values()), worst(smaller)))


@claim("EMA-5.3-vocabulary")
def vocabularies_of_the_models() -> Evidence:
    """The models that the source trains are in the range; the simulation of appendix G is not."""
    low, high = VOCABULARY
    return Evidence(
        worst(violation(low - size, size - high) for size in VOCABULARIES.values()),
        condition=(
            f"the models of this source ({', '.join(f'{n}: {v:,}' for n, v in VOCABULARIES.items())}). "
            f"Appendix G simulates {VOCAB:,} tokens, less than a third of the range's lower end"
        ),
    )


@claim("EMA-appA-period")
def period_of_the_cited_code() -> Evidence:
    """The default of the cited repository, in optimizer steps."""
    return Evidence(
        excess(float(PERIOD["cited code"]), PERIOD["source"]),
        condition=(
            "the number. In the cited code it counts optimizer steps, in algorithm 3 iterations of Lambda "
            f"steps; the coefficient there is {PERIOD['cited coefficient']}, here 0.9 to 0.95"
        ),
    )
