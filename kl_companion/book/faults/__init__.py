"""Training steps with one mistake each, as people make them: what the doctor is tried on."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.book.faults.catalog import CASES as CASES
    from kl_companion.book.faults.catalog import GROUPS as GROUPS
    from kl_companion.book.faults.catalog import FaultCase as FaultCase
    from kl_companion.book.faults.catalog import examined as examined
    from kl_companion.book.faults.catalog import judged as judged

_NAMES: dict[str, str] = {
    "CASES": "kl_companion.book.faults.catalog",
    "FaultCase": "kl_companion.book.faults.catalog",
    "GROUPS": "kl_companion.book.faults.catalog",
    "examined": "kl_companion.book.faults.catalog",
    "judged": "kl_companion.book.faults.catalog",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
