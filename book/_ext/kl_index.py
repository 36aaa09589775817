"""A search index that a build of a few pages leaves whole.

Sphinx 7.4 reads the index of the last build back without its index entries, so that pages which were not
written again lose theirs, and a search no longer finds them by the words of the glossary.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from sphinx import search


class WholeIndex(search.IndexBuilder):
    """An index builder whose `load` brings index entries back; its `prune` drops those of other pages."""

    def load(self, stream: Any, format: Any) -> None:
        """Reconstruct everything that `freeze` wrote."""
        text = stream.read()
        super().load(io.StringIO(text), format)
        frozen = (self.formats[format] if isinstance(format, str) else format).load(io.StringIO(text))
        self._index_entries = {name: [] for name in self._titles}
        for entry, places in frozen["indexentries"].items():
            for page, target, is_main in places:
                found = (entry, target, "main" if is_main else "")
                self._index_entries[frozen["docnames"][page]].append(found)

    def prune(self, docnames: Iterable[str]) -> None:
        """Remove what belongs to other pages than these."""
        kept = set(docnames)
        super().prune(kept)
        self._index_entries = {name: found for name, found in self._index_entries.items() if name in kept}


def connect(app: Any) -> None:
    """Let the HTML builder use it: the builder looks the class up by its name when it begins."""
    search.IndexBuilder = WholeIndex  # type: ignore[misc]
