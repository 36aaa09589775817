"""The references and the displays that the copy read here lacks (wang2025choosing)."""

from __future__ import annotations

from kl_book.ledger.claims.ledger import Evidence, claim

LISTED = ("Yifan Zhang", "Yiping Ji", "Gavin Brown")
AUTHORS = ("Yifan Zhang", "Yifeng Liu", "Huizhuo Yuan", "Yang Yuan", "Quanquan Gu", "Andrew Chi-Chih Yao")


@claim("WZ-refs", how="text")
def authors_of_the_listed_paper() -> Evidence:
    """Names in the list of references that are among the authors at arXiv:2505.17508."""
    known = [name for name in LISTED if name in AUTHORS]
    return Evidence(
        record=(
            f"The {len(AUTHORS)} authors are {', '.join(AUTHORS)}. Of the {len(LISTED)} names that are "
            f"listed, {len(known)} is among them: {', '.join(known)}."
        )
    )


SHAH_LISTED = 8
SHAH = (
    *("Vedant Shah", "Johan Obando-Ceron", "Vineet Jain", "Brian Bartoldson", "Bhavya Kailkhura"),
    *("Sarthak Mittal", "Glen Berseth", "Pablo Samuel Castro", "Yoshua Bengio", "Nikolay Malkin"),
    *("Moksh Jain", "Siddarth Venkatraman", "Aaron Courville"),
)


@claim("WZ-refs-shah", how="text")
def authors_of_the_other_listed_paper() -> Evidence:
    """The list of references ends after eight of the authors, without saying that there are more."""
    return Evidence(
        record=f"There are {len(SHAH)} authors. After the {SHAH_LISTED} that are listed come "
        f"{', '.join(SHAH[SHAH_LISTED:])}."
    )


@claim("WZ-equations-lost", how="reading")
def displays_that_nobody_has() -> Evidence:
    """What a missing formula says cannot be compared with anything."""
    return Evidence(
        needs="the displayed formulas of the post, which the copy that was read lacks",
        note=(
            "What the sentences around them announce is tested row by row, and each row that rests on a "
            "missing formula says so."
        ),
    )
