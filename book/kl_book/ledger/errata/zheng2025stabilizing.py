"""Corrections of "Stabilizing Reinforcement Learning with LLMs" (zheng2025stabilizing)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

QW: tuple[Erratum, ...] = (
    Erratum(
        title="The weight between the engines does not decide the order of the approximation",
        rows=("QW-4.3-wo-is",),
        consequence="result",
        printed=(
            "Section 4.3, after the two variants, and the third item under figure 1 (also section 1): "
            "without the importance weight between training and inference the objective no longer is a "
            "first-order approximation of the expected reward, as the weight is an inherent part of it. "
            "This is given as the reason why these runs collapse."
        ),
        why=(
            r"In the expansion of section 2.3 the weighted objective is $\sum_t \delta_t$ plus a constant, "
            r"and the one without weights is $\sum_t \log(1 + \delta_t)$ plus a constant. They agree to "
            "first order. Both gradients are exact where policy and sampler agree, and both are off by the "
            "first order elsewhere."
        ),
        charitable=(
            r"The weight does remove the terms in $\delta_t^2$, so that its gradient is exact for answers of "
            "one token and closer in most of the worlds that were tried. Length normalization, the other "
            "variant, is wrong at order zero if answers differ in length."
        ),
    ),
    Erratum(
        title="Both distances small is enough and not necessary",
        rows=("QW-abs-conditions",),
        consequence="derivation",
        printed=(
            'Abstract ("increasingly valid only when both") and section 1 ("likely to hold only when both"): '
            "the surrogate needs a small discrepancy of the engines and a small staleness of the policy."
        ),
        why=(
            "Neither objective contains the older policy of the training engine. What counts is the product "
            "of both ratios, the distance from the target policy to the sampler, and the two factors may "
            "cancel."
        ),
        charitable=(
            "Section 2.4 says it as it is: target policy and rollout policy have to be close, and their gap "
            "has two sources. Nothing in a run makes the two cancel on purpose, and to reduce both is the "
            "practical way."
        ),
    ),
    Erratum(
        title="The index of the answer is missing in CISPO",
        rows=("QW-A-cispo",),
        consequence="slip",
        printed=(
            r"Appendix A, second formula: the expectation is over one answer $y$, and the log-probability is "
            r"that of $y_t$, under sums over the answers $i$ of a group."
        ),
        why="Ratio, advantage and length carry the index of the group, and the scored token does not.",
        charitable=(
            r"Meant is $y_{i,t}$ and an expectation over the group, as in the formula of GRPO above it."
        ),
    ),
)
