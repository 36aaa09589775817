"""The claims of the sources, one check each: `run` says which hold, and by how much the others fail.

From the bottom up: the standard of judgement and the ledger of checks; `ground`, the worlds, estimators and
printed tables that checks share; one module of checks for each section of a source; the pages.

The names are loaded on first use: a chapter that shows the verdicts of the table loads no check.
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.ledger.claims.ledger import CLAIMS as CLAIMS
    from kl_book.ledger.claims.ledger import Claim as Claim
    from kl_book.ledger.claims.ledger import Evidence as Evidence
    from kl_book.ledger.claims.ledger import claim as claim
    from kl_book.ledger.claims.ledger import run as run
    from kl_book.ledger.claims.standard import CORRECTED as CORRECTED
    from kl_book.ledger.claims.standard import FAILING as FAILING
    from kl_book.ledger.claims.standard import SOURCES as SOURCES
    from kl_book.ledger.claims.standard import STANDARD as STANDARD
    from kl_book.ledger.claims.standard import VERDICTS as VERDICTS
    from kl_book.ledger.claims.statements import Row as Row
    from kl_book.ledger.claims.statements import register as register

__getattr__, __all__, __dir__ = lazy(__name__)
