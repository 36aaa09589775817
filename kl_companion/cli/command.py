"""The command `kl-companion`: its arguments, and how it ends."""

from __future__ import annotations

import argparse
import os
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
_NOBODY_READS = 128 + 13  # as a shell reports a process that SIGPIPE has ended
_WANTED = {"doctor": "step that runs on the small world", "audit": "loss that runs on a Rollout"}


def _subject(args: argparse.Namespace) -> str:
    """Return what the user asked about: a loss, a target, or the verb."""
    return str(getattr(args, "target", getattr(args, "loss", args.verb)))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 a wanted verdict or a check failed, 2 it could not run, 141 nobody reads it."""
    args = _parsed(argv)
    try:
        status = VERBS[args.verb].run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has read enough: what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except SystemExit as error:  # of the user's code: a status of its own would pass for a verdict
        wanted = f"expected a {_WANTED.get(args.verb, 'command that ends')}"
        print(f"kl-companion: {_subject(args)} called sys.exit({error.code!r}), {wanted}", file=sys.stderr)
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
    path, _, name = _subject(args).rpartition(":")
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if path and Path(frame.filename).resolve() == Path(path).resolve()
    ]
    if not theirs:
        return f"{type(error).__name__}: {error}"
    said = f"{name} raised {type(error).__name__} at {path}:{theirs[-1].lineno}"
    return f"{said}: {error}; expected a {_WANTED[args.verb]}"
