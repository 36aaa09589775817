"""The book's explorer: this package's definitions as JavaScript, its page, and the numbers it must show."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_book.explorer.enumerated import exact as exact
    from kl_book.explorer.page import Explorer as Explorer
    from kl_book.explorer.page import Notes as Notes
    from kl_book.explorer.presets import PRESETS as PRESETS
    from kl_book.explorer.sentences import failures as failures

__getattr__, __all__, __dir__ = lazy(__name__)
