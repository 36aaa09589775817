"""Corrections of the published summary of tang2025pitfalls (summary2025pitfalls)."""

from __future__ import annotations

from kl_companion.claims.errata.erratum import Erratum

SUMMARY = (
    Erratum(
        title="The second misuse differentiates every token, not the last one",
        rows=("AI-1",),
        consequence="slip",
        printed=(
            "AI summary, second misuse: the sequential structure is ignored in that gradients are "
            "computed at the final token only."
        ),
        why=(
            "The misuse that the note describes, its eq (6), adds up the gradients of the KL estimates of "
            "all tokens. What it leaves out is the effect of a token on the KL of the tokens after it."
        ),
        charitable=(
            "The frame of the sentence is right: the sequential structure is ignored, and the gradient is "
            "partial. The abstract on the same page says it correctly."
        ),
    ),
)
