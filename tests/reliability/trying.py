"""What every subject returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Trial(NamedTuple):
    """One line: what was done, how often, and how often it went wrong.

    Attributes:
        what: What was done, in words that are understood without the code.
        tried: How often.
        failed: How often the result was not what it must be (a mutant that no test noticed, a next run that
            did not complete, a wrong answer).
        lost: How often something was lost: a corrupt or half-written file, finished work that was repeated,
            bytes that differ from those of an undisturbed run. None where nothing can be lost.
        said: One line per failure or loss, for whoever has to mend it.
    """

    what: str
    tried: int
    failed: int
    lost: int | None = None
    said: tuple[str, ...] = ()


# a subject: `quick` is the form that `make test` runs, seconds; `seed` draws what is random
Subject = Callable[[bool, int], Iterator[Trial]]
