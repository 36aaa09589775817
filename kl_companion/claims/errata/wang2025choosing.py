"""Corrections of the post on the choice of KL estimators (wang2025choosing)."""

from __future__ import annotations

from kl_companion.claims.errata.erratum import Erratum

WANG = (
    Erratum(
        title="A KL in the reward does not need an accurate value",
        rows=("WZ-5-requires",),
        consequence="slip",
        printed=(
            "Section 5.2, closing list: an estimate that shapes the reward has to have an accurate value, "
            "and its policy-gradient update has to match the objective."
        ),
        why=(
            "What enters the policy-gradient term is E[s k] alone, with s the score. A constant added to "
            "k spoils the value and leaves the update as it is, because the score has mean zero; k3 has "
            "an unbiased value and a biased update."
        ),
        charitable=(
            "Section 7.1 puts it right: the value and the update are two separate questions. An accurate "
            r"value does matter where the penalty is logged or steers \beta, or where a critic learns it."
        ),
    ),
    Erratum(
        title="Authors of two papers in the list of references",
        rows=("WZ-refs", "WZ-refs-shah"),
        consequence="slip",
        printed=(
            "Reference list: arXiv:2505.17508 is by Yifan Zhang, Yiping Ji, Gavin Brown and others, and "
            "arXiv:2512.21852 by eight authors, Vedant Shah to Pablo Samuel Castro."
        ),
        why=(
            "Of the three names only the first is among the six authors of the former. The latter has "
            "thirteen; the list ends after the eighth without a sign that more follow."
        ),
        charitable="First authors, titles and numbers are right, so that a reader finds the papers meant.",
    ),
)
