"""`kl-companion list`: what is registered."""

from __future__ import annotations

import argparse

from kl_companion.cli.printing import row

HELP = "what is registered"
TOPICS = ("estimators", "divergences", "objectives", "frameworks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("topic", choices=TOPICS, nargs="?", default="estimators")


def run(args: argparse.Namespace) -> int:
    """Print what is registered."""
    if args.topic == "estimators":
        from kl_companion.estimators import ESTIMATORS

        for e in ESTIMATORS.values():
            row(e.name, e.target, e.source)
    elif args.topic == "divergences":
        from kl_companion.divergences import DIVERGENCES, FAMILIES

        for d in DIVERGENCES.values():
            row(d.name, str(d.f), d.source)
        for name, family in FAMILIES.items():
            row(f"{name}(...)", (family.__doc__ or "").partition(".\n")[0])
    elif args.topic == "frameworks":
        from kl_companion.frameworks.printing import print_list

        print_list()
    else:
        from kl_companion.auditing.worlds.objectives import objectives

        for o in objectives(off_policy=True).values():
            row(o.name, o.words)
    return 0
