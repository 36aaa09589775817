"""The claims of Tang and Munos, "On a few pitfalls in KL divergence gradient estimation for RL"."""

from kl_book.ledger.claims.tang2025pitfalls import (  # noqa: F401 - importing a section registers its checks
    appendices,
    discussion,
    gradients,
    learning,
    partial,
    related,
    sequences,
    values,
)
