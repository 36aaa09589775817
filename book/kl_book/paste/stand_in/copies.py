"""Which of few rows each row of a large batch is.

An audit repeats every answer as often as it is expected, some ten thousand times. A tensor of such a batch
holds the few different rows, and its own entries are made when somebody asks for them. Gradients belong to
the few rows: a sum over the batch counts every copy, and where the entries were asked for, those of all
copies are added up.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import chain
from typing import Any

Entries = list[Any]


class Copies:
    """Which row stands where in a batch; every row does, and one more than once."""

    def __init__(self, which: tuple[int, ...], rows: int) -> None:
        self.which, self.rows = which, rows
        often = Counter(which)
        self.counts = [often[i] for i in range(rows)]
        self.whole: Copies | None = None  # of which these are parts of rows
        self._parts: dict[int, Copies] = {}

    def __len__(self) -> int:
        return len(self.which)

    def in_parts(self, count: int) -> Copies:
        """The same batch, every row of it cut into so many."""
        if count == 1:
            return self
        if count not in self._parts:
            of_row = [range(i * count, (i + 1) * count) for i in range(self.rows)]
            which = tuple(chain.from_iterable([of_row[i] for i in self.which]))
            found = self._parts[count] = Copies(which, self.rows * count)
            found.whole = self
        return self._parts[count]

    def spread(self, entries: Entries) -> Entries:
        """The entries of the batch, from those of the rows."""
        size = len(entries) // self.rows
        if size == 1:
            return [entries[i] for i in self.which]
        rows = [entries[i * size : (i + 1) * size] for i in range(self.rows)]
        return list(chain.from_iterable([rows[i] for i in self.which]))

    def added(self, entries: Entries) -> Entries:
        """The contrary for gradients: those of all copies of a row added up."""
        size = len(entries) // len(self.which)
        found = [0.0] * (size * self.rows)
        for at, i in enumerate(self.which):
            for j in range(size):
                found[i * size + j] += entries[at * size + j]
        return found

    def of_each(self, entries: Entries) -> Entries:
        """What one copy has of what all copies of its row have together."""
        size = len(entries) // self.rows
        return [x / self.counts[i // size] for i, x in enumerate(entries)]


@lru_cache(maxsize=256)  # all tensors of a batch have the same, and so can be told to belong together
def copies_of(which: tuple[int, ...], rows: int) -> Copies | None:
    """Which rows an index takes; None where it repeats none, or leaves one out."""
    if not rows or len(which) <= rows or len(set(which)) < rows:
        return None
    return Copies(which, rows)
