"""What the verbs share: rows of a listing, notes on stderr, and options that have no effect."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable


def row(*cells: str) -> None:
    """Print cells in columns."""
    print("  ".join(f"{c:<28}" for c in cells[:-1]) + "  " + cells[-1])


def progress(*, quiet: bool = False) -> Callable[[str], None]:
    """Say how far it is, on stderr if that is a terminal, once two seconds have passed."""
    start, quiet = time.monotonic(), quiet or not sys.stderr.isatty()

    def tell(line: str) -> None:
        if not quiet and time.monotonic() - start > 2:
            print(f"  {line}", file=sys.stderr, flush=True)

    return tell


def note(text: str, *, quiet: bool = False) -> None:
    """Print a sentence on stderr."""
    if not quiet:
        print(f"  {text}", file=sys.stderr, flush=True)


def refuse_options(args: argparse.Namespace, subject: str, names: Iterable[str], why: str) -> None:
    """Raise ValueError where options were set that have no effect on this subject.

    Args:
        args: What was parsed; an option is set where it is not None, False or [].
        subject: What they have no effect on, for the message.
        names: Of the options, as attributes of ``args``.
        why: The reason, for the message.
    """
    given = [f"--{n.replace('_', '-')}" for n in names if getattr(args, n) not in (None, False, [])]
    if given:
        raise ValueError(f"{subject} got {', '.join(given)}, expected none of them: {why}")
