"""`python -m kl_book`: what only the book needs, from the command line."""

from __future__ import annotations

from collections.abc import Sequence

from kl_book.cli import claims, table
from kl_book.cli import list as listing
from kl_companion.cli.command import run_command

VERBS = {"list": listing, "claims": claims, "table": table}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the statuses are those of `kl_companion.cli.main`."""
    return run_command("python -m kl_book", "The ledger and the result tables of the book.", VERBS, argv)


if __name__ == "__main__":
    raise SystemExit(main())
