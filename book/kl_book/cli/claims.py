"""`python -m kl_book claims`: what the sources say, checked."""

from __future__ import annotations

import argparse

from kl_companion.cli.printing import row

HELP = "what the sources say, checked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("id", nargs="?", help="one row of the register; all of them by default")
    parser.add_argument("--source", help="bib key of one source")
    parser.add_argument("--failed", action="store_true", help="only what does not hold as printed")


def run(args: argparse.Namespace) -> int:
    """Check what the sources say, one row after the other, and print what each check found."""
    import torch

    from kl_book.ledger import claims
    from kl_book.ledger.claims.texts import letters, plain
    from kl_companion.checks import check_choice, unknown_name

    torch.set_num_threads(1)
    if args.source is not None:
        check_choice("source", args.source, claims.SOURCES)
    rows = claims.register()
    if args.id is not None and args.id not in rows:
        raise unknown_name("claim", args.id, list(rows))
    chosen = [r for r in rows.values() if args.id in (None, r.id) and args.source in (None, r.source)]
    counts = dict.fromkeys(claims.VERDICTS, 0)
    for claim in chosen:
        found = claims.run(claim.id)
        counts[found.verdict] += 1
        if args.failed and found.verdict not in claims.FAILING:
            continue
        row(claim.id, found.verdict, f"{claim.source}, {claim.location}")
        print(f"    says: {plain(claim.statement)}")
        for label, text in found.details():
            print(f"    {label}: {letters(text)}", flush=True)
    print(f"{len(chosen)} claims: " + ", ".join(f"{verdict} ({n})" for verdict, n in counts.items() if n))
    print(claims.ONE_CASE)
    return 0
