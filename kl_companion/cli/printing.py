"""What the verbs share: rows of a listing, and how far a long run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def row(*cells: str) -> None:
    """Print cells in columns."""
    print("  ".join(f"{c:<28}" for c in cells[:-1]) + "  " + cells[-1])


def progress(*, quiet: bool = False) -> Callable[[str], None]:
    """Say how far it is, on stderr, once two seconds have passed."""
    start = time.monotonic()

    def tell(line: str) -> None:
        if not quiet and time.monotonic() - start > 2:
            print(f"  {line}", file=sys.stderr, flush=True)

    return tell
