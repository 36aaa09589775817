"""Training steps with one mistake each, as people make them: what the doctor is tried on."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.faults.catalog import CASES as CASES
    from kl_book.faults.catalog import GROUPS as GROUPS
    from kl_book.faults.catalog import FaultCase as FaultCase
    from kl_book.faults.catalog import examined as examined
    from kl_book.faults.catalog import judged as judged

__getattr__, __all__, __dir__ = lazy(__name__)
