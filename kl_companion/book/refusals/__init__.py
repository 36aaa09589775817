"""What the package says to bad input: a catalogue of cases, every message made by running one.

>>> from kl_companion.book.refusals import CASES, run
>>> run(CASES[0]).exception
'ValueError'
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.book.refusals.case import Case as Case
    from kl_companion.book.refusals.case import Exit as Exit
    from kl_companion.book.refusals.case import Refusal as Refusal
    from kl_companion.book.refusals.case import parts as parts
    from kl_companion.book.refusals.case import run as run
    from kl_companion.book.refusals.case import unclear as unclear
    from kl_companion.book.refusals.catalog import CASES as CASES
    from kl_companion.book.refusals.catalog import GROUPS as GROUPS

__getattr__, __all__, __dir__ = lazy(__name__)
