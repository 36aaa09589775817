"""`kl-companion frameworks`: past releases, what changed in them, and how to look at a new one."""

from __future__ import annotations

import argparse

from kl_companion.cli.printing import progress

HELP = "past releases of frameworks: what changed, when"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.description = (
        "history: what the losses of past releases minimize, and in which release that changed. "
        "fetch: download wheels into .audit/releases, which are unpacked and not installed. "
        "update: fetch the newest release, audit it, say what moved and keep the findings; exit 1 when a "
        "verdict moved. report: where a loss is not what it is named for, a text for its maintainers, with a "
        "reproduction in plain PyTorch; nobody is contacted."
    )
    parser.add_argument("action", choices=("history", "fetch", "update", "report"))
    parser.add_argument("project", help="trl, verl, ...")
    parser.add_argument(
        "versions", nargs="*", help="for fetch: releases; none for those that history looks at"
    )
    parser.add_argument("--release", metavar="VERSION", help="for report: not the newest that is known")
    parser.add_argument("--all", action="store_true", help="for history: every release, not only changes")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    """Do it; 1 when an update found that a verdict moved."""
    from kl_companion.frameworks.history import printing

    if args.versions and args.action != "fetch":
        raise ValueError(
            f"{args.action} got releases {' '.join(args.versions)}, expected none: it has all of them"
        )
    if args.release is not None and args.action != "report":
        raise ValueError(f"{args.action} got --release {args.release}, expected none: it is for report")
    if args.all and args.action != "history":
        raise ValueError(f"{args.action} got --all, expected none: it is for history")
    told = progress(quiet=args.quiet)
    if args.action == "history":
        printing.print_history(args.project, every=args.all)
    elif args.action == "fetch":
        printing.fetch_releases(args.project, args.versions, told)
    elif args.action == "report":
        printing.print_reports(args.project, args.release, told)
    else:
        return printing.update(args.project, told)
    return 0
