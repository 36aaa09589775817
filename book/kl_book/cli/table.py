"""`python -m kl_book table`: run, check, confirm or show result tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress

from kl_companion.cli.printing import progress

HELP = "result tables"
_SHOWN = 3  # changed files of each table, where all tables are checked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("action", choices=("run", "check", "confirm", "show"))
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--all", action="store_true", help="every table; run leaves those that take hours or lack a model"
    )
    parser.add_argument("--profile", choices=("cpu", "gpu", "gpu_short", "smoke"), default="cpu")
    parser.add_argument(
        "--jobs", type=int, help="points at a time; by default 2, on a cluster one per thread of its workers"
    )
    parser.add_argument("--backend", help="run the points on an existing cluster: dask")
    parser.add_argument("--address", help="where its scheduler listens: tcp://host:port")
    parser.add_argument(
        "--seconds", type=float, default=60, help="of confirm: how long it makes points again"
    )
    parser.add_argument("--fresh", action="store_true", help="run finished points again")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    """Run, check, confirm or show result tables."""
    from kl_book import tables

    if args.action != "check" and not args.names and not args.all:
        raise ValueError(
            f"table {args.action} got no name, expected one or more of: {', '.join(tables.names())}, or --all"
        )
    names = list(args.names or tables.names())
    if args.action == "run" and not args.names:
        names = _in_minutes(names, here=args.backend is None)
    for name in names:
        if name not in tables.names():
            from kl_companion.checks import unknown_name

            raise unknown_name("table", name, tables.names())
    if args.action == "check":
        problems = [p for name in names for p in tables.check(name)] if args.names else tables.check()
        for name in names:
            with suppress(ValueError, FileNotFoundError):  # without a provenance: a problem, named below
                if drift := tables.drift(name):
                    few = drift if args.names else drift[:_SHOWN]
                    more = f" and {len(drift) - len(few)} more" if len(drift) > len(few) else ""
                    print(f"{name}: other code than made it: {', '.join(few)}{more}")
        for problem in problems:
            print(problem)
        print(f"{len(names)} tables checked, {len(problems)} problems")
        return 1 if problems else 0
    jobs = 2 if args.jobs is None and args.backend is None else args.jobs
    if args.action == "run" and args.backend is None:
        _check_models(names)
    if args.action == "run" and not args.quiet:
        _announce(names, args, jobs)
    for name in names:
        if args.action == "confirm":
            told = progress(quiet=args.quiet)
            points = tables.confirm(name, profile=args.profile, seconds=args.seconds, progress=told)
            print(f"{name}: {points} points made again, the same rows")
        elif args.action == "show":
            print(tables.load(name, profile=args.profile).to_string(index=False))
        else:
            frame = tables.run(
                name,
                profile=args.profile,
                jobs=jobs,
                fresh=args.fresh,
                backend=args.backend,
                address=args.address,
                progress=progress(quiet=args.quiet),
            )
            print(f"{name}: {len(frame)} rows")
    return 0


def _check_models(names: Sequence[str]) -> None:
    """Raise ImportError where a table lacks its model, before the first of them is made."""
    from kl_book.tables.manifest import read_manifest
    from kl_book.tables.needs import lacking

    for name in names:
        if line := lacking(read_manifest(name)):
            raise ImportError(line)


def _in_minutes(names: Sequence[str], *, here: bool) -> list[str]:
    """The tables that `--all` makes: none that takes hours or, where they are run here, lacks its model."""
    from kl_book.tables.manifest import read_manifest
    from kl_book.tables.needs import lacking

    found = []
    for name in names:
        manifest = read_manifest(name)
        if manifest.cost == "hours":
            print(f"  {name}: takes hours, so --all leaves it: table run {name}", file=sys.stderr)
        elif here and (line := lacking(manifest)):
            print(f"  {line}", file=sys.stderr)
        else:
            found.append(name)
    return found


def _announce(names: Sequence[str], args: argparse.Namespace, jobs: int | None) -> None:
    """Say on stderr what is to be made and how long that will take, before it starts."""
    from kl_book.tables.planning import announcement, plan

    plans = [plan(name, profile=args.profile, fresh=args.fresh) for name in names]
    for line in announcement(plans, max(jobs or 1, 1)):
        print(f"  {line}", file=sys.stderr, flush=True)
