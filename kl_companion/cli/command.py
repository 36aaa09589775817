"""The command `kl-companion`: its arguments, and how it ends."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from kl_companion.cli import audit, claims, derive, doctor, frameworks, report, table
from kl_companion.cli import list as listing

VERBS = {
    "list": listing,
    "derive": derive,
    "audit": audit,
    "doctor": doctor,
    "claims": claims,
    "frameworks": frameworks,
    "report": report,
    "table": table,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 a wanted verdict or a check failed, 2 it could not run."""
    args = _parsed(argv)
    try:
        return VERBS[args.verb].run(args)
    except (ValueError, FileNotFoundError, ConnectionError, ImportError) as error:
        print(f"kl-companion: {error}", file=sys.stderr)
    except Exception as error:  # the reader's loss or a table's notebook: say what and where, not our stack
        print(f"kl-companion: {_where_it_failed(error, args)}", file=sys.stderr)
    return 2


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; an option that the verb does not have is refused with those that it has."""
    parser = argparse.ArgumentParser(prog="kl-companion", description="What does your KL term optimize?")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, module in VERBS.items():
        module.add_arguments(verbs.add_parser(name, help=module.HELP))
    args, rest = parser.parse_known_args(argv)
    if rest:
        from kl_companion.checks import unknown_name

        verb = verbs.choices[args.verb]
        known = [option for action in verb._actions for option in action.option_strings]
        what = "option" if rest[0].startswith("-") else "argument"
        verb.error(str(unknown_name(what, rest[0], known)))
    return args


def _where_it_failed(error: Exception, args: argparse.Namespace) -> str:
    """What was raised; where the reader's own loss or step did, its name and the line."""
    examined = getattr(args, "target", "") if args.verb == "doctor" else getattr(args, "loss", "")
    path, _, name = str(examined).rpartition(":")
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if path and Path(frame.filename).resolve() == Path(path).resolve()
    ]
    if not theirs:
        return f"{type(error).__name__}: {error}"
    said = f"{name} raised {type(error).__name__} at {path}:{theirs[-1].lineno}"
    wanted = "step that runs on the small world" if args.verb == "doctor" else "loss that runs on a Rollout"
    return f"{said}: {error}; expected a {wanted}"
