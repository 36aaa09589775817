"""Corrections of "When KL Regularization Misfires in Group Policy Optimization" (ding2026misfires)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

ZCPO = (
    Erratum(
        title="A differentiated KL does not press on the length by its growth",
        rows=("ZCPO-F4",),
        consequence="derivation",
        printed=(
            "Section 3, F4, and the abstract: the KL modulates the length of answers, as it accumulates "
            "along an answer and longer answers have larger penalties."
        ),
        why=(
            "In the setting of the section the KL of every token is differentiated on its own. A constant "
            "that is added to every token makes the sum grow faster with the length and leaves this gradient "
            "as it is."
        ),
        charitable=(
            "It is right for a KL in the reward. A differentiated KL moves the length at the stopping token, "
            "as F4 goes on to say, and in either direction."
        ),
    ),
    Erratum(
        title="An advantage divided by the standard deviation is bounded as well",
        rows=("ZCPO-C-bounded",),
        consequence="derivation",
        printed=(
            "Appendix C: the reward coefficient of ZCPO is bounded, the advantage that is divided by the "
            "standard deviation is not."
        ),
        why=(
            r"In a group of $G$ answers no deviation from the mean exceeds $(G - 1)/\sqrt{G}$ times the "
            "sample standard deviation. With 16 answers, as in the source, this is 3.75."
        ),
        charitable="Without a fixed size of the group there is no bound: it grows with the root of the size.",
    ),
)
