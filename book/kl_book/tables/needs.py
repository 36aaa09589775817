"""What a table cannot be made without: a real model, which its manifest `needs`."""

from __future__ import annotations

from kl_book.tables.manifest import Manifest
from kl_companion.llm.packaged import missing


def lacking(manifest: Manifest) -> str | None:
    """A line that says what a table needs and is not installed, with what to do; None where all is there.

    Raises:
        ValueError: a model that is not known.
    """
    try:
        line = None if manifest.needs is None else missing(manifest.needs)
    except ValueError as error:
        raise ValueError(f"tables/{manifest.name}/manifest.yml: needs: {error}") from None
    return None if line is None else f"table {manifest.name!r} is not made: {line}"
