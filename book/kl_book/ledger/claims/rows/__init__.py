"""The records of the rows, a file for each source, and how they are read.

The names are loaded on first use.
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.ledger.claims.rows.records import PLACE as PLACE
    from kl_book.ledger.claims.rows.records import TEXTS as TEXTS
    from kl_book.ledger.claims.rows.records import UNITS as UNITS
    from kl_book.ledger.claims.rows.records import Erratum as Erratum
    from kl_book.ledger.claims.rows.records import Row as Row
    from kl_book.ledger.claims.rows.records import errata as errata
    from kl_book.ledger.claims.rows.records import others as others
    from kl_book.ledger.claims.rows.records import parsed as parsed
    from kl_book.ledger.claims.rows.records import register as register

__getattr__, __all__, __dir__ = lazy(__name__)
