"""What text and captions say about the tables of results, against the tables (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterable

from kl_book.ledger.claims.ground.errors import excess, hedged, violation, worst
from kl_book.ledger.claims.ground.printed_results import (
    ABSTRACT,
    ANCHOR,
    FORWARD,
    GAIN,
    GENERAL,
    GRPO,
    INSTRUCT,
    MATH_COLUMNS,
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
from kl_book.ledger.claims.ground.scores import HALF_A_UNIT, MATH_SETS, mean_score, printed_cells, scores
from kl_book.ledger.claims.ground.synthetic_task import VOCAB
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_book.ledger.claims.standard import JUDGEMENT

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
SINGLE = "single numbers, printed without a spread and without the number of runs"


def _misquoted(quotes: tuple[Quote, ...]) -> float:
    return worst(excess(100 * scores(q.table, q.row)[q.column], q.percent) for q in quotes)


@claim("EMA-abstract-numbers-tables", how="text")
def quotes_of_abstract_and_introduction() -> Evidence:
    """Eight percentages are cells of tables 2 and 3."""
    return Evidence(_misquoted(ABSTRACT), note="EMA-PG on search is the row of the top-k reverse KL")


@claim("EMA-6-numbers", how="text")
def quotes_of_section_6() -> Evidence:
    """Seven percentages are cells of tables 2 and 3."""
    return Evidence(_misquoted(SECTION_6))


@claim("EMA-tab3-sets", how="text")
def six_math_sets() -> Evidence:
    """As many sets as the caption counts."""
    return Evidence(float(len(MATH_SETS) != NUMBERS.index(MATH_SETS_OF_THE_CAPTION)))


@claim("EMA-exp-math-sets", how="text")
def the_sets_that_the_text_lists() -> Evidence:
    """Section 6 lists five of the six."""
    apart = {*MATH_SETS} ^ {*MATH_SETS_OF_THE_TEXT}
    of_five = [mean_score(scores(3, s)[c] for s in MATH_SETS_OF_THE_TEXT) for c in MATH_COLUMNS[:3]]
    return Evidence(
        float(len(apart)),
        float(len({*MATH_SETS} ^ {*MATH_SETS_OF_THE_TEXT, "AMC 2024"})),
        agrees_with="EMA-tab3-sets",
        unit="places in the text",
        correction="AMC 2024 belongs to the list as well; of AMC, the training set has problems before 2023",
        counterexample=f"{', '.join(sorted(apart))} has a row in table 3 and a part in its average",
        practice=(
            "no result depends on it. Over the five sets of the sentence the averages of base model, GRPO "
            f"and EMA-PG would be {', '.join(f'{x:.3f}' for x in of_five)}, where table 3 has "
            f"{', '.join(list(printed_cells(3, 'Average').values())[:3])}"
        ),
    )


@claim("EMA-exp-search-sets", how="text")
def the_search_sets_that_the_text_lists() -> Evidence:
    """Three general and four multi-hop sets, as in the head of table 2."""
    head = {"general": GENERAL, "multi-hop": MULTI_HOP}
    return Evidence(float(sum({*head[k]} != {*SEARCH_SETS_OF_THE_TEXT[k]} for k in head)))


def _behind(table: int, ours: str, theirs: Iterable[str], columns: Iterable[str]) -> dict[str, float]:
    """By how much a row fails to be above others, by column."""
    above = scores(table, ours)
    return {c: violation(*(scores(table, r)[c] - above[c] + HALF_A_UNIT for r in theirs)) for c in columns}


@claim("EMA-tab3-every", how="text")
def better_on_every_math_set() -> Evidence:
    """EMA-PG above GRPO, row by row."""
    found = [violation(scores(3, s)["GRPO"] - scores(3, s)["EMA-PG"] + HALF_A_UNIT) for s in MATH_SETS]
    return Evidence(worst(found), note=f"{SINGLE}; for the noise on AIME 2025 see EMA-tab3-AIME2025")


@claim("EMA-tab2-excels", how="reading")
def above_every_other_method() -> Evidence:
    """Praise; beside it, the reverse form against all prompting and other RL rows, column by column."""
    others = [r for r in TABLE_2 if r not in (FORWARD, REVERSE, GAIN)]
    behind = [s for s, x in _behind(2, REVERSE, others, SETS).items() if x > 0]
    nearest = min((scores(2, REVERSE)[s] - scores(2, r)[s], s, r) for r in others for s in SETS)
    return Evidence(
        needs=JUDGEMENT,
        note=(
            "with top-k reverse KL it is above every other method of the table, "
            f"{'except on ' + ', '.join(behind) if behind else 'on every set'}; the closest is "
            f"{nearest[1]}, {nearest[0]:.3f} above {nearest[2]}; {SINGLE}"
        ),
    )


def _on_average(ours: str, theirs: str) -> Evidence:
    """A comparison for which the source gives averages; the sets that go the other way are named."""
    found = _behind(2, ours, [theirs], SETS)
    lost = [
        f"{s} {printed_cells(2, ours)[s]} against {printed_cells(2, theirs)[s]}" for s in SETS if found[s] > 0
    ]
    return Evidence(
        found["Avg."],
        note=f"on average, as the sentence compares; the other way round: {'; '.join(lost) or 'no set'}",
    )


@claim("EMA-6-topk-forward-gain", how="text")
def forward_top_k_beside_sampled_k3() -> Evidence:
    """34.8 to 40.6 on average; two of the seven sets lose."""
    return _on_average(FORWARD, ANCHOR)


@claim("EMA-6-topk-reverse-gain", how="text")
def reverse_top_k_beside_sampled_k3() -> Evidence:
    """34.8 to 41.6 on average; no set loses."""
    return _on_average(REVERSE, ANCHOR)


@claim("EMA-6-reverse-better", how="text")
def reverse_beside_forward() -> Evidence:
    """41.6 against 40.6 on average; one of the seven sets loses."""
    return _on_average(REVERSE, FORWARD)


@claim("EMA-6-anchor-gain", how="text")
def anchor_and_warp_beside_grpo() -> Evidence:
    """WARP below GRPO, the EMA anchor above it, on average and on every set."""
    return Evidence(
        max(
            worst(_behind(2, GRPO, ["WARP"], SETS).values()),
            worst(_behind(2, ANCHOR, [GRPO], SETS).values()),
        ),
        note=(
            "printed scores. WARP differs from the row of the anchor in more than the level of its KL, so "
            "that they do not tell which difference counts (EMA-5.1-empirical)"
        ),
    )


@claim("EMA-fig5-final", how="text")
def both_forms_end_above() -> Evidence:
    """Final averages of both top-k forms above GRPO and GRPO with an EMA anchor."""
    rows = [_behind(2, r, [GRPO, ANCHOR], ["Avg."])["Avg."] for r in (FORWARD, REVERSE)]
    return Evidence(worst(rows), note="final averages of table 2; the curves are not given as numbers")


@claim("EMA-tab4-gain", how="text")
def smaller_gain_on_the_instruct_model() -> Evidence:
    """Above GRPO on every set, by less than on the base model on every set."""
    ahead = _behind(4, INSTRUCT, [GRPO], SETS)
    smaller = [
        violation(float(printed_cells(4, GAIN)[s]) - float(printed_cells(2, GAIN)[s]) + 0.05) for s in SETS
    ]
    return Evidence(max(worst(ahead.values()), worst(smaller)))


@claim("EMA-5.3-vocabulary", how="text")
def vocabularies_of_the_models() -> Evidence:
    """The models that the source trains are in the range; the simulation of appendix G is not."""
    low, high = VOCABULARY
    return Evidence(
        hedged(low <= size <= high for size in VOCABULARIES.values()),
        note=(
            "of the models that the source trains, which share a tokenizer "
            f"({', '.join(f'{n}: {v:,}' for n, v in VOCABULARIES.items())}). Appendix G simulates {VOCAB:,} "
            "tokens, less than a third of the lower end"
        ),
    )


@claim("EMA-appA-period", how="text")
def period_of_the_cited_code() -> Evidence:
    """The default of the cited repository, in optimizer steps."""
    return Evidence(
        excess(float(PERIOD["cited code"]), PERIOD["source"]),
        note=(
            "the number. In the cited code it counts optimizer steps, in algorithm 3 iterations of "
            rf"$\Lambda$ steps; the coefficient there is {PERIOD['cited coefficient']}, here 0.9 to 0.95"
        ),
    )
