"""The sources and the standard by which their statements are judged: rules, verdicts and tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

import yaml

VERDICTS = (
    *("holds", "holds only if", "misprint", "does not hold as worded"),
    *("bibliography", "not reproducible here", "not examined yet"),
)
FAILING = VERDICTS[1:4]
CORRECTED = VERDICTS[2:4]
TOLERANCE = 1e-9
HEDGES = ("generally", "in general", "as a rule", "typically", "usually", "mostly", "can")
HEDGE_SHARE = 0.75  # of the worlds named beforehand
DEGREES = ("nearly", "almost", "about", "negligible", "marginal", "hardly")
DEGREE = 0.1  # relative
ONE_CASE = (
    "One case decides against a statement that names no exception. Most such statements are right in the "
    "cases that their authors had in mind, and each row says in which."
)
JUDGEMENT = "a judgement"
UNEXAMINED = "a check, which is not written yet"


class Rule(NamedTuple):
    """One rule of the standard: a question about a printed statement, and the answer that holds for all."""

    name: str
    text: str


STANDARD: tuple[Rule, ...] = (
    Rule(
        "What is judged",
        "The sentence or formula as it is printed, as widely as it is worded. " + ONE_CASE,
    ),
    Rule(
        "Support and setting",
        "Policy, reference and sampler give every outcome a positive probability, as a softmax does, "
        "unless the text speaks of truncated distributions. Samples come from the policy unless another "
        "sampler is named; gradients are expected gradients. Ties decide nothing: worlds in which ratios, "
        "rewards or products of log-ratio and score are the same for every outcome are left out, and so are, "
        "where it matters whether two gradients differ, worlds of two answers, in which all gradients are "
        "parallel.",
    ),
    Rule(
        "Which restriction counts",
        "Only one that its own text states, anywhere, or that its own setting implies: the range that a "
        "table prints beside a formula, a coefficient that is one number, the dynamics that a lemma names, "
        "a vocabulary of the size that the section speaks of. The row says which, and where it is printed; "
        "the verdict is then 'holds only if'. A restriction that only this book supplies does not count: "
        "the row is a misprint or does not hold as worded, and the restriction is shown beside the "
        "correction.",
    ),
    Rule(
        "Hedges",
        "Generally, in general, as a rule, typically, usually, mostly, can: the statement holds if it is "
        f"true in at least {HEDGE_SHARE:.0%} of worlds that are named before the check runs: those that the "
        "text itself draws, where it says how, and otherwise one fixed list of bandits and trees for all "
        "sources.",
    ),
    Rule(
        "Words of degree",
        f"Nearly, almost, about, negligible, marginally, hardly: within {DEGREE:.0%} of the quantity that "
        "is compared, unless the text gives a number.",
    ),
    Rule(
        "Misprint or not",
        "A misprint is a slip of writing (a sign, symbol, index, name, number or cross-reference) which "
        "another place of the same source sets right. A claim about what is so is never a misprint.",
    ),
    Rule(
        "Bibliography",
        "Years, names and numbers in a list of references are compared with the cited work and form a "
        "class of their own. They are never counted as false statements.",
    ),
    Rule(
        "Judgements",
        "Praise, importance, ease, priority, intention, and advice without a criterion that could be "
        "computed are judgements: no verdict, and the row says what can be computed beside it.",
    ),
    Rule(
        "One statement, one verdict",
        "Rows that say the same, in one source or in several, get the same verdict. Notes on a row that "
        "holds say what was tried and how large things are; they restrict nothing.",
    ),
)


class Source(NamedTuple):
    """One document.

    Attributes:
        name: How the book calls it.
        date: Year and month of the first version that is known; without a month: unknown.
        version: What was read: number, version and date, as far as the copy says.
        lacks: What the copy that was read did not contain.
        pages: Further pages of the ledger with its statements, each with the row that it begins with.
    """

    name: str
    date: str
    version: str
    lacks: str
    pages: Mapping[str, str] = MappingProxyType({})


READINGS: dict[str, Source] = {
    key: Source(**entry)
    for key, entry in yaml.load(
        files("kl_book.ledger.claims").joinpath("sources.yml").read_bytes(), yaml.CBaseLoader
    ).items()
}
SOURCES = tuple(READINGS)
NAMES = {key: source.name for key, source in READINGS.items()}
