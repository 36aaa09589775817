"""What text and captions say about the tables of results, against the tables (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import Found, at_most, corrected, numbers, printed
from kl_book.ledger.claims.ground import printed_results as paper
from kl_book.ledger.claims.ground.errors import excess, hedged
from kl_book.ledger.claims.ground.printed_results import mean_score, printed_cells, scores
from kl_book.ledger.claims.ground.synthetic_task import VOCAB

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


def quoted(q: paper.Quote) -> Iterator[Found]:
    """A percentage in the text is a cell of a table."""
    yield printed(excess(100 * scores(q.table, q.row)[q.column], q.percent))


claim_rows(quoted, {"EMA-abstract-numbers-tables": paper.ABSTRACT, "EMA-6-numbers": paper.SECTION_6})


@claim("EMA-tab3-sets")
def six_math_sets() -> Iterator[Found]:
    """As many sets as the caption counts."""
    yield printed(float(len(paper.MATH_SETS) != NUMBERS.index(paper.MATH_SETS_OF_THE_CAPTION)))


@claim("EMA-exp-math-sets")
def the_sets_that_the_text_lists() -> Iterator[Found]:
    """Section 6 lists five of the six."""
    missing = {*paper.MATH_SETS} ^ {*paper.MATH_SETS_OF_THE_TEXT}
    yield printed(float(len(missing)))
    yield corrected(float(len({*paper.MATH_SETS} ^ {*paper.MATH_SETS_OF_THE_TEXT, "AMC 2024"})))
    yield numbers(
        missing=sorted(missing),
        of_five=[
            mean_score(scores(3, s)[c] for s in paper.MATH_SETS_OF_THE_TEXT) for c in paper.MATH_COLUMNS[:3]
        ],
        of_six=list(printed_cells(3, "Average").values())[:3],
    )


@claim("EMA-exp-search-sets")
def the_search_sets_that_the_text_lists() -> Iterator[Found]:
    """Three general and four multi-hop sets, as in the head of table 2."""
    for kind, sets in {"general": paper.GENERAL, "multi-hop": paper.MULTI_HOP}.items():
        yield printed(float({*sets} != {*paper.SEARCH_SETS_OF_THE_TEXT[kind]}))


def ahead(ours: str, theirs: str, columns: Iterable[str] = paper.SETS, table: int = 2) -> Iterator[Found]:
    """A row is above another one in every column, by more than rounding hides."""
    above, below = scores(table, ours), scores(table, theirs)
    for column in columns:
        yield at_most(below[column] + paper.HALF_A_UNIT, above[column])


@claim("EMA-tab3-every")
def better_on_every_math_set() -> Iterator[Found]:
    """EMA-PG above GRPO, row by row."""
    for s in paper.MATH_SETS:
        yield at_most(scores(3, s)["GRPO"] + paper.HALF_A_UNIT, scores(3, s)["EMA-PG"])


@words("EMA-tab2-excels")
def above_every_other_method() -> dict[str, Any]:
    """Praise; beside it, where and of what the reverse form is least ahead."""
    others = [row for row in paper.TABLE_2 if row not in (paper.FORWARD, paper.REVERSE, paper.GAIN)]
    margin, column, row = min(
        (scores(2, paper.REVERSE)[s] - scores(2, r)[s], s, r) for r in others for s in paper.SETS
    )
    return {"margin": margin, "set": column, "method": row}


def on_average(rows: tuple[str, str]) -> Iterator[Found]:
    """A comparison for which the source gives averages; the sets that go the other way are named."""
    yield from ahead(*rows, columns=["Avg."])
    one, other = (printed_cells(2, row) for row in rows)
    lost = [f"{s} {one[s]} against {other[s]}" for s in paper.SETS if float(one[s]) <= float(other[s])]
    yield numbers(lost="; ".join(lost) or "no set")


claim_rows(
    on_average,
    {
        "EMA-6-topk-forward-gain": [(paper.FORWARD, paper.ANCHOR)],
        "EMA-6-topk-reverse-gain": [(paper.REVERSE, paper.ANCHOR)],
        "EMA-6-reverse-better": [(paper.REVERSE, paper.FORWARD)],
    },
)


@claim("EMA-6-anchor-gain")
def anchor_and_warp_beside_grpo() -> Iterator[Found]:
    """WARP below GRPO, the EMA anchor above it, on average and on every set."""
    yield from ahead(paper.GRPO, "WARP")
    yield from ahead(paper.ANCHOR, paper.GRPO)


@claim("EMA-fig5-final")
def both_forms_end_above() -> Iterator[Found]:
    """Final averages of both top-k forms above GRPO and GRPO with an EMA anchor."""
    for ours in (paper.FORWARD, paper.REVERSE):
        yield from ahead(ours, paper.GRPO, ["Avg."])
        yield from ahead(ours, paper.ANCHOR, ["Avg."])


@claim("EMA-tab4-gain")
def smaller_gain_on_the_instruct_model() -> Iterator[Found]:
    """Above GRPO on every set, by less than on the base model on every set."""
    yield from ahead(paper.INSTRUCT, paper.GRPO, table=4)
    for s in paper.SETS:
        yield at_most(float(printed_cells(4, paper.GAIN)[s]) + 0.05, float(printed_cells(2, paper.GAIN)[s]))


@claim("EMA-5.3-vocabulary")
def vocabularies_of_the_models() -> Iterator[Found]:
    """The models that the source trains are in the range; the simulation of appendix G is not."""
    low, high = paper.VOCABULARY
    yield printed(hedged(low <= size <= high for size in paper.VOCABULARIES.values()))
    yield numbers(models=[f"{name}: {size:,}" for name, size in paper.VOCABULARIES.items()], simulated=VOCAB)


@claim("EMA-appA-period")
def period_of_the_cited_code() -> Iterator[Found]:
    """The default of the cited repository, in optimizer steps."""
    yield printed(excess(float(paper.PERIOD["cited code"]), paper.PERIOD["source"]))
    yield numbers(coefficient=paper.PERIOD["cited coefficient"])
