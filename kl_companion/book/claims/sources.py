"""The documents whose statements are checked: which version was read, when, and what the copy lacked."""

from __future__ import annotations

from typing import NamedTuple


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
}
SOURCES = tuple(READINGS)
NAMES = {key: source.name for key, source in READINGS.items()}
FORMULA_LOST = (
    "The displayed formula is missing in the copy that was read; tested is what the sentences around it say."
)
