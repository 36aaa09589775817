"""The corrections of the sources, one entry for each cause, those with consequences first.

An entry says in words what is printed, why it cannot be right and how it may have been meant. What is
computed, the corrected form, the counterexample and how much it matters, comes from the checks of its rows.
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.ledger.errata.entries import ERRATA as ERRATA
    from kl_book.ledger.errata.erratum import Erratum as Erratum

__getattr__, __all__, __dir__ = lazy(__name__)
