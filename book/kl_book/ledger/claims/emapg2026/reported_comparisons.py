"""What text and captions say about the tables of results, against the tables (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.evidence import Evidence
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

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


def _misquoted(quotes: tuple[Quote, ...]) -> float:
    return worst(excess(100 * scores(q.table, q.row)[q.column], q.percent) for q in quotes)


@claim("EMA-abstract-numbers-tables")
def quotes_of_abstract_and_introduction() -> Iterator[Found]:
    """Eight percentages are cells of tables 2 and 3."""
    yield from each_form(_misquoted(ABSTRACT))


@claim("EMA-6-numbers")
def quotes_of_section_6() -> Iterator[Found]:
    """Seven percentages are cells of tables 2 and 3."""
    yield from each_form(_misquoted(SECTION_6))


@claim("EMA-tab3-sets")
def six_math_sets() -> Iterator[Found]:
    """As many sets as the caption counts."""
    yield from each_form(float(len(MATH_SETS) != NUMBERS.index(MATH_SETS_OF_THE_CAPTION)))


@claim("EMA-exp-math-sets")
def the_sets_that_the_text_lists() -> Iterator[Found]:
    """Section 6 lists five of the six."""
    apart = {*MATH_SETS} ^ {*MATH_SETS_OF_THE_TEXT}
    of_five = [mean_score(scores(3, s)[c] for s in MATH_SETS_OF_THE_TEXT) for c in MATH_COLUMNS[:3]]
    yield from each_form(
        float(len(apart)),
        float(len({*MATH_SETS} ^ {*MATH_SETS_OF_THE_TEXT, "AMC 2024"})),
        number=", ".join(sorted(apart)),
        number_2=", ".join(f"{x:.3f}" for x in of_five),
        number_3=", ".join(list(printed_cells(3, "Average").values())[:3]),
    )


@claim("EMA-exp-search-sets")
def the_search_sets_that_the_text_lists() -> Iterator[Found]:
    """Three general and four multi-hop sets, as in the head of table 2."""
    head = {"general": GENERAL, "multi-hop": MULTI_HOP}
    yield from each_form(float(sum({*head[k]} != {*SEARCH_SETS_OF_THE_TEXT[k]} for k in head)))


def _behind(table: int, ours: str, theirs: Iterable[str], columns: Iterable[str]) -> dict[str, float]:
    """By how much a row fails to be above others, by column."""
    above = scores(table, ours)
    return {c: violation(*(scores(table, r)[c] - above[c] + HALF_A_UNIT for r in theirs)) for c in columns}


@claim("EMA-tab3-every")
def better_on_every_math_set() -> Iterator[Found]:
    """EMA-PG above GRPO, row by row."""
    found = [violation(scores(3, s)["GRPO"] - scores(3, s)["EMA-PG"] + HALF_A_UNIT) for s in MATH_SETS]
    yield from each_form(worst(found))


@claim("EMA-tab2-excels")
def above_every_other_method() -> Iterator[Found]:
    """Praise; beside it, the reverse form against all prompting and other RL rows, column by column."""
    others = [r for r in TABLE_2 if r not in (FORWARD, REVERSE, GAIN)]
    behind = [s for s, x in _behind(2, REVERSE, others, SETS).items() if x > 0]
    nearest = min((scores(2, REVERSE)[s] - scores(2, r)[s], s, r) for r in others for s in SETS)
    yield numbers(
        number="except on " + ", ".join(behind) if behind else "on every set",
        nearest_1=nearest[1],
        nearest_0=nearest[0],
        nearest_2=nearest[2],
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
def anchor_and_warp_beside_grpo() -> Iterator[Found]:
    """WARP below GRPO, the EMA anchor above it, on average and on every set."""
    yield from each_form(
        max(
            worst(_behind(2, GRPO, ["WARP"], SETS).values()),
            worst(_behind(2, ANCHOR, [GRPO], SETS).values()),
        )
    )


@claim("EMA-fig5-final")
def both_forms_end_above() -> Iterator[Found]:
    """Final averages of both top-k forms above GRPO and GRPO with an EMA anchor."""
    rows = [_behind(2, r, [GRPO, ANCHOR], ["Avg."])["Avg."] for r in (FORWARD, REVERSE)]
    yield from each_form(worst(rows))


@claim("EMA-tab4-gain")
def smaller_gain_on_the_instruct_model() -> Iterator[Found]:
    """Above GRPO on every set, by less than on the base model on every set."""
    ahead = _behind(4, INSTRUCT, [GRPO], SETS)
    smaller = [
        violation(float(printed_cells(4, GAIN)[s]) - float(printed_cells(2, GAIN)[s]) + 0.05) for s in SETS
    ]
    yield from each_form(max(worst(ahead.values()), worst(smaller)))


@claim("EMA-5.3-vocabulary")
def vocabularies_of_the_models() -> Iterator[Found]:
    """The models that the source trains are in the range; the simulation of appendix G is not."""
    low, high = VOCABULARY
    yield from each_form(
        hedged(low <= size <= high for size in VOCABULARIES.values()),
        number=", ".join(f"{n}: {v:,}" for n, v in VOCABULARIES.items()),
        VOCAB=VOCAB,
    )


@claim("EMA-appA-period")
def period_of_the_cited_code() -> Iterator[Found]:
    """The default of the cited repository, in optimizer steps."""
    yield from each_form(
        excess(float(PERIOD["cited code"]), PERIOD["source"]),
        PERIOD_cited_coefficient=PERIOD["cited coefficient"],
    )
