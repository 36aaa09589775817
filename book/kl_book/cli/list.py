"""`python -m kl_book list`: which tables and which claims there are."""

from __future__ import annotations

import argparse

from kl_companion.cli.printing import row

HELP = "which tables and which claims there are"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("topic", choices=("tables", "claims"), nargs="?", default="tables")


def run(args: argparse.Namespace) -> int:
    """Print the names of the tables, or the statements of the register."""
    if args.topic == "tables":
        from kl_book import tables

        print(*tables.names(), sep="\n")
    else:
        from kl_book.ledger.claims import register

        for claim in register().values():
            row(claim.id, f"{claim.source}, {claim.location}", claim.statement)
    return 0
