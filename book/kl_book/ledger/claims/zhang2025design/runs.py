"""Sections 5, H and I: what the printed numbers and letters say (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kl_book.ledger.claims.checks import claim, claim_rows
from kl_book.ledger.claims.comparisons import Found, corrected, numbers, printed, same
from kl_book.ledger.claims.ground import printed_accuracies as paper
from kl_book.ledger.claims.ground.errors import excess, violation
from kl_book.ledger.claims.ground.off_policy import share_of_cases

AIME = ("AIME24", "AIME25")
REINFORCE = "RPG-REINFORCE"  # of which there are two variants
QUESTIONS = 960  # answers that a Mean@32 of AIME counts: 30 problems, 32 answers each
CONTEXT = (3, 5, 6)  # the tables of the 8K, 4K and 2K runs that the text speaks of


def _last_above_best(runs: Iterable[paper.Score]) -> float:
    """By how much the last value of a run exceeds the best one."""
    return violation(*(s.last - s.best for s in runs))


@claim("RPG-tab5")
def last_and_best() -> Iterator[Found]:
    """In none of these tables a last value exceeds the best value of its run."""
    yield printed(_last_above_best(paper.scores(5, 6, 7, 8)))


@claim("RPG-tab3")
def last_and_best_at_8k() -> Iterator[Found]:
    """One last value exceeds the best one of its run, the other 17 do not."""
    cells = paper.scores(3)
    wrong = max(cells, key=lambda s: s.last - s.best)
    others = [s for s in cells if s != wrong]
    yield printed(_last_above_best(cells))
    yield corrected(_last_above_best(others))
    yield numbers(others=len(others), method=wrong.method, benchmark=wrong.benchmark)
    yield numbers(last=wrong.last, best=wrong.best, answers=QUESTIONS, right=wrong.last * QUESTIONS)


def places_in_the_text(table: int) -> Iterator[Found]:
    """The table has the places and accuracies that the text names."""
    for benchmark, which, accuracy, methods in paper.PLACES[table]:
        yield printed(float(paper.order(table, benchmark, which)[: len(methods)] != methods))
        if accuracy is not None:
            yield same(paper.column(table, benchmark, which)[methods[0]], accuracy)


claim_rows(places_in_the_text, {"RPG-I1-4k": (5,), "RPG-I1-2k": (6,)})


@claim("RPG-I1-rank")
def worst_place_of_a_variant() -> Iterator[Found]:
    """The lowest place of an RPG variant in a column of Table 5."""
    places = {}
    for x in paper.columns(5):
        order = paper.order(*x)
        places[x] = max(order.index(m) for m in order if m.startswith("RPG")) + 1
    (_, benchmark, which), place = max(places.items(), key=lambda item: item[1])
    yield numbers(place=place, benchmark=benchmark, which=which)


@claim("RPG-abs-52")
def accuracy_that_the_abstract_rounds() -> Iterator[Found]:
    """The largest and the last one of a run."""
    best, last = (paper.column(3, "AIME25", which)["RPG-REINFORCE-URKL"] for which in ("best", "last"))
    yield numbers(best=best, last=last)


def _reinforce(accuracies: dict[str, float]) -> float:
    """The larger accuracy of the RPG-REINFORCE variants."""
    return max(x for method, x in accuracies.items() if method.startswith(REINFORCE))


@claim("RPG-abs-6")
def the_largest_gain_over_dapo() -> Iterator[Found]:
    """It rounds to 6 points, over the tables of all context lengths."""
    each = {x: paper.column(*x) for x in paper.columns(*CONTEXT) if x[1] in AIME}
    gains = {x: 100 * (_reinforce(accuracies) - accuracies["DAPO"]) for x, accuracies in each.items()}
    (table, benchmark, which), largest = max(gains.items(), key=lambda item: item[1])
    yield printed(excess(largest, "6"))
    yield numbers(largest=largest, table=table, benchmark=benchmark, which=which)
    yield numbers(differences=len(gains), mean=sum(gains.values()) / len(gains))


def _led(every: Iterable[tuple[int, str, str]]) -> list[bool]:
    """In which columns RPG-REINFORCE has the largest number."""
    return [paper.order(*x)[0].startswith(REINFORCE) for x in every]


@claim("RPG-5-across")
def the_strongest_results_across_settings() -> Iterator[Found]:
    """Half of the columns of Tables 3, 5 and 6 have another method on top; all have an RPG variant there."""
    every, best = paper.columns(*CONTEXT), paper.column(3, "AIME24", "best")
    led, aime = _led(every), _led(x for x in every if x[1] in AIME)
    yield printed(share_of_cases(not one for one in led))
    yield corrected(share_of_cases(not paper.order(*x)[0].startswith("RPG") for x in every))
    yield numbers(led=sum(led), columns=len(led), led_at_aime=sum(aime), columns_at_aime=len(aime))
    yield numbers(top=paper.order(3, "AIME24", "best")[0], best=best["RPG-UFKL"], reinforce=_reinforce(best))
    yield numbers(led_in_7=sum(_led(paper.columns(7))), columns_of_7=len(paper.columns(7)))
    yield numbers(led_in_8=sum(_led(paper.columns(8))), columns_of_8=len(paper.columns(8)))


@claim("RPG-5-subfigures")
def the_panels_of_the_figures() -> Iterator[Found]:
    """The letters in the text are those of figures with one benchmark less."""
    wrong = [paper.PANELS_OF_THE_TEXT[name] != letter for name, letter in paper.PANELS.items()]
    shifted = {
        name: chr(ord(letter) + 1) if len(letter) == 1 else f"{letter}c"
        for name, letter in paper.PANELS_OF_THE_TEXT.items()
    }
    yield printed(float(sum(wrong)))
    yield corrected(float(sum(shifted[name] != letter for name, letter in paper.PANELS.items())))
    yield numbers(wrong=sum(wrong), references=len(wrong))


@claim("RPG-H-grpo-clip")
def the_clip_range_of_grpo_in_the_appendix() -> Iterator[Found]:
    """Section 5 and the released scripts have another one."""
    appendix, section, scripts = (paper.GRPO_CLIP[x] for x in ("appendix H", "section 5", "scripts"))
    yield printed(float(sum(x != appendix for x in (section, scripts))))
    yield corrected(float(scripts != section))
    (low, high), (low_in_h, high_in_h) = section, appendix
    yield numbers(low=low, high=high, low_in_h=low_in_h, high_in_h=high_in_h)


@claim("RPG-5-grpo-clip")
def the_clip_range_of_grpo() -> Iterator[Found]:
    """That of the released scripts."""
    for section, script in zip(paper.GRPO_CLIP["section 5"], paper.GRPO_CLIP["scripts"], strict=True):
        yield same(section, script)


@claim("RPG-fig2-caption")
def the_signs_of_the_panels() -> Iterator[Found]:
    """The caption says A = 1 and A < 0 of the same panel."""
    signs, cases = paper.FIGURE_2["for visualization"], paper.FIGURE_2["cases"]
    titles = {"left": paper.FIGURE_2_TITLES["case A < 0"], "right": paper.FIGURE_2_TITLES["case A >= 0"]}
    yield printed(float(sum(signs[panel] != cases[panel] for panel in cases)))
    yield corrected(float(sum(-signs[panel] != titles[panel] for panel in titles)))
    yield numbers(left=signs["left"], right=signs["right"])
