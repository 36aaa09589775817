"""Slips of someone who writes a policy loss down, and who notices them: the audit, polgrad, neither."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.mutants.judging import judged as judged
    from kl_book.mutants.losses import FORMULAS as FORMULAS
    from kl_book.mutants.losses import LOSSES as LOSSES
    from kl_book.mutants.making import Mutant as Mutant
    from kl_book.mutants.making import mutants_of as mutants_of

__getattr__, __all__, __dir__ = lazy(__name__)
