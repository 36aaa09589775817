"""The claims of the sources, one check each: `run` says which hold, and by how much the others fail.

From the bottom up: the standard of judgment, the records of the rows (data in ``rows``), and where checks
are registered; `ground`, the worlds, estimators and printed tables that checks share; a module of checks for
each section of a source; the ledger that runs them; the pages.

The names are loaded on first use: a chapter that shows the verdicts of the table loads no check.
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.ledger.claims.checks import CLAIMS as CLAIMS
    from kl_book.ledger.claims.checks import Claim as Claim
    from kl_book.ledger.claims.checks import claim as claim
    from kl_book.ledger.claims.evidence import Evidence as Evidence
    from kl_book.ledger.claims.ledger import run as run
    from kl_book.ledger.claims.rows import Row as Row
    from kl_book.ledger.claims.rows import register as register
    from kl_book.ledger.claims.standard import CORRECTED as CORRECTED
    from kl_book.ledger.claims.standard import FAILING as FAILING
    from kl_book.ledger.claims.standard import ONE_CASE as ONE_CASE
    from kl_book.ledger.claims.standard import SOURCES as SOURCES
    from kl_book.ledger.claims.standard import STANDARD as STANDARD
    from kl_book.ledger.claims.standard import VERDICTS as VERDICTS

__getattr__, __all__, __dir__ = lazy(__name__)
