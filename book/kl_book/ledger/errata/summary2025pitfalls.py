"""Corrections of the published summary of tang2025pitfalls (summary2025pitfalls)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

SUMMARY = (
    Erratum(
        title="Not every differentiated estimate has a biased gradient",
        rows=("AI-first-misuse",),
        consequence="result",
        printed=(
            "AI summary, first misuse: to differentiate a sampled estimate of the KL as if it were a loss "
            "gives biased gradients."
        ),
        why=(
            r"The squared estimate $\frac{1}{2}\log^2(\pi/\pref)$, differentiated, has exactly the "
            "gradient of "
            "the KL, for one decision and for a whole sequence. Section 3 of the note, which is summarized, "
            "presents it as the exception."
        ),
        charitable=(
            "It is right for the vanilla and for the variance-reduced estimate, which are the ones in use, "
            "and "
            'for any of the three summed over tokens. The abstract on the same page says "generally".'
        ),
    ),
    Erratum(
        title="The experiments do not show what the summary says of them",
        rows=("AI-2+tabular", "AI-2"),
        consequence="result",
        printed=(
            "AI summary, last sentence: on tabular problems and with language models wrong gradients degrade "
            "the policy, and corrected ones improve the hold on the KL, the convergence and the final task."
        ),
        why=(
            "On bandits one of the two wrong gradients lowers the KL to the reference as the right one does. "
            "With language models the note reports curves of reward against KL that are alike for both "
            "estimates, and curves of the KL in distillation; it reports no final task."
        ),
        charitable=(
            "The hold on the KL is improved: where the KL is high the right gradient lowers it and the "
            "variance-reduced one hardly does (Figure 8). Beside a reward, wrong gradients on bandits do end "
            "farther from the wanted optimum (Figure 4)."
        ),
    ),
    Erratum(
        title="The second misuse differentiates every token, not the last one",
        rows=("AI-1",),
        consequence="derivation",
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
