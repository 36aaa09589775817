"""Rows of tables about losses that carry the ratio: their gradients, sample by sample and on average."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from kl_book.ledger.claims.comparisons import Shortfall, differs, same
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import all_worlds, sampled_elsewhere


class LossRow(NamedTuple):
    """A loss of the note's tables.

    Attributes:
        name: Its estimator.
        coefficient: Of rho s in the gradient of a sample: k1, k1 + 1 or k2 + k1.
        ratio: Whether the policy in rho carries a gradient.
        off: Whether the row is about samples of another policy alone.
    """

    name: str
    coefficient: str = "k1"
    ratio: Literal["attached", "detached"] = "attached"
    off: bool = False

    def worlds(self) -> Iterator[Enumeration]:
        """The worlds that the row is about."""
        return each(sampled_elsewhere if self.off else all_worlds)()

    def gradient(self) -> Iterator[Shortfall]:
        """Compare the gradient with c rho s; its mean with that of the KL, or of E[k2], which is another."""
        for w in self.worlds():
            c = {"k1": w.l, "k1 + 1": w.l + 1, "k2 + k1": w.l**2 / 2 + w.l}[self.coefficient]
            slope = w.in_loss(self.name, self.ratio)
            yield same(slope, w.times_score(c))
            if self.coefficient == "k2 + k1":
                yield same(w.E(slope), w.d_square)
                yield differs(w.d_square, w.d_kl)
            else:
                yield same(w.E(slope), w.d_kl)
