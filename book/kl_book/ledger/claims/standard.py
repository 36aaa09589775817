"""The sources and the standard by which their statements are judged: rules, verdicts and tolerances."""

from __future__ import annotations

from typing import NamedTuple

VERDICTS = (
    *("holds", "holds only if", "misprint", "false as printed"),
    *("bibliography", "not reproducible here", "not examined yet"),
)
FAILING = VERDICTS[1:4]
CORRECTED = VERDICTS[2:4]
TOLERANCE = 1e-9
HEDGES = ("generally", "in general", "as a rule", "typically", "usually", "mostly")
HEDGE_SHARE = 0.75  # of the worlds named beforehand
DEGREES = ("nearly", "almost", "about", "negligible", "marginal", "hardly")
DEGREE = 0.1  # relative
JUDGEMENT = "a judgement"
UNEXAMINED = "a check, which is not written yet"


class Rule(NamedTuple):
    """One rule of the standard: a question about a printed statement, and the answer that holds for all."""

    name: str
    text: str


STANDARD: tuple[Rule, ...] = (
    Rule(
        "What is judged",
        "The sentence or formula as it is printed, as widely as it is worded. One case against a "
        "statement that says always, or that says nothing about exceptions, decides.",
    ),
    Rule(
        "Support and setting",
        "Policy, reference and sampler give every outcome a positive probability, as a softmax does, "
        "unless the text speaks of truncated distributions. Samples come from the policy unless another "
        "sampler is named; gradients are expected gradients. Ties decide nothing: worlds in which ratios, "
        "rewards or products of log-ratio and score are the same for every outcome are left out.",
    ),
    Rule(
        "Which restriction counts",
        "Only one that its own text states or that its own setting implies. The row says which, and where "
        "it is printed; the verdict is then 'holds only if'. A restriction that only this book supplies "
        "does not count: the row is a misprint or false as printed, and the restriction is shown beside "
        "the correction.",
    ),
    Rule(
        "Hedges",
        "Generally, in general, as a rule, typically, usually, mostly: the statement holds if it is true "
        f"in at least {HEDGE_SHARE:.0%} of worlds that are named before the check runs: those that the "
        "text itself draws, where it says how, and otherwise one fixed list of bandits and trees for all "
        "sources.",
    ),
    Rule(
        "Words of degree",
        f"Nearly, almost, about, negligible, marginally, hardly: within {DEGREE:.0%} of the quantity that "
        "is compared, unless the text gives a number.",
    ),
    Rule(
        "Misprint or false",
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
        version: What was read: number, version and date, as far as the copy says.
        lacks: What the copy that was read did not contain.
    """

    name: str
    version: str
    lacks: str


READINGS: dict[str, Source] = {
    "tang2025pitfalls": Source(
        "Tang & Munos",
        "arXiv:2506.09477, June 2025; the copy does not say whether it is the version of 11 or of 17 June",
        "the figures as pictures: their captions and the text about them were read",
    ),
    "wang2025choosing": Source(
        "Wang & Zhang",
        "the blog post of 1 December 2025 in its English version, as it was in November 2026",
        "its display equations: they were rebuilt from the text, code and tables around them",
    ),
    "shah2025comedy": Source(
        "Shah et al.",
        "arXiv:2512.21852, December 2025: abstract, summary of findings and public reviews",
        "the body of the paper",
    ),
    "summary2025pitfalls": Source(
        "Summary",
        "a machine-written summary of Tang & Munos dated 11 June 2025; its statements are checked, it is no "
        "authority",
        "an author to ask",
    ),
    "emapg2026": Source(
        "EMA-PG",
        "the anonymous submission to the FoGen workshop at ICML 2026, with appendices A to K; the preprint "
        "arXiv:2602.04417 of February 2026, which has the same title, was not compared",
        "the figures as pictures: their captions and the text about them were read",
    ),
    "yao2026future": Source(
        "FRPO",
        "arXiv:2601.10201v2 of 23 May 2026, with appendices A to H",
        "the figures as pictures, and the layout of displayed formulas, which were put together from their "
        "parts",
    ),
    "ding2026misfires": Source(
        "ZCPO",
        "the manuscript of 2026 with appendices A to H; the copy has no date and no number",
        "the figures as pictures, and the display that defines the coefficients: it was rebuilt from the "
        "sentences around it and appendix H",
    ),
    "vojnovic2025alignment": Source(
        "Vojnovic & Yun",
        "arXiv:2502.18548, February 2025, with appendices",
        "the figures as pictures, and the layout of displayed formulas, which were put together from their "
        "parts",
    ),
    "zhang2025design": Source(
        "RPG",
        "arXiv:2505.17508, with appendices",
        "the figures as pictures, and the layout of displayed formulas, which were put together from their "
        "parts",
    ),
    "zheng2025stabilizing": Source(
        "Zheng et al.",
        "arXiv:2512.01374, December 2025",
        "the figures as pictures, and the layout of displayed formulas, which were put together from their "
        "parts",
    ),
}
SOURCES = tuple(READINGS)
NAMES = {key: source.name for key, source in READINGS.items()}
FORMULA_LOST = (
    "The displayed formula is missing in the copy that was read; tested is what the sentences around it say."
)
