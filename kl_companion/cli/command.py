"""The command `kl-companion`: its arguments, and how it ends."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from kl_companion.cli import audit, derive, doctor, frameworks, report
from kl_companion.cli import list as listing
from kl_companion.ending import TimedOut

VERBS: dict[str, ModuleType] = {
    "list": listing,
    "derive": derive,
    "audit": audit,
    "doctor": doctor,
    "frameworks": frameworks,
    "report": report,
}
MOVED = ("claims", "table")  # verbs of the command of the book
_INTERRUPTED = 128 + 2  # by Ctrl-C
_NOBODY_READS = 128 + 13  # as a shell reports a process that SIGPIPE has ended
_WANTED = {"doctor": "step that runs on the small world", "audit": "loss that runs on a Rollout"}


def _subject(args: argparse.Namespace) -> str:
    """Return what the user asked about: a loss, a target, or the verb."""
    return str(getattr(args, "target", getattr(args, "loss", args.verb)))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 a wanted verdict or a check failed, 2 it could not run, above 2 it was ended."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] and arguments[0] in MOVED:
        print(
            f"kl-companion: {arguments[0]} is a command of the book, expected in a checkout of its sources: "
            f"python -m kl_book {shlex.join(arguments)}",
            file=sys.stderr,
        )
        return 2
    status = run_command("kl-companion", "What does your KL term optimize?", VERBS, arguments)
    if argv is None and arguments[0] in _WANTED:
        _leave(status)
    return status


def _leave(status: int) -> NoReturn:
    """End the process: threads and exit handlers of the user's file could go on, or change the status."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(status)


def run_command(
    prog: str, description: str, verbs: Mapping[str, ModuleType], argv: Sequence[str] | None
) -> int:
    """Run one verb of a command, and end as `main` says.

    Args:
        prog: The command, as a user types it.
        description: One line for its help.
        verbs: Modules by verb, each with ``HELP``, ``add_arguments`` and ``run``.
        argv: The arguments; None for those of the process.
    """
    args = _parsed(prog, description, verbs, argv)
    name = prog.rpartition(" ")[2]
    try:
        status: int = verbs[args.verb].run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has read enough: what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except TimedOut as error:
        print(f"{name}: {error}", file=sys.stderr)
    except SystemExit as error:  # of the user's code: a status of its own would pass for a verdict
        wanted = f"expected a {_WANTED.get(args.verb, 'command that ends')}"
        print(f"{name}: {_subject(args)} called sys.exit({error.code!r}), {wanted}", file=sys.stderr)
    except (ValueError, FileNotFoundError, ConnectionError, ImportError) as error:
        print(f"{name}: {error}", file=sys.stderr)
    except Exception as error:  # the reader's loss or a table's notebook: say what and where, not our stack
        print(f"{name}: {_where_it_failed(error, args)}", file=sys.stderr)
    return 2


def _parsed(
    prog: str, description: str, modules: Mapping[str, ModuleType], argv: Sequence[str] | None
) -> argparse.Namespace:
    """The arguments; an option that the verb does not have is refused with those that it has."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, module in modules.items():
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
    path, name = (path, name) if path else (name, Path(name).stem)
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if path and Path(frame.filename).resolve() == Path(path).resolve()
    ]
    if not theirs:
        return f"{type(error).__name__}: {error}"
    said = f"{name} raised {type(error).__name__} at {path}:{theirs[-1].lineno}"
    return f"{said}: {error}; expected a {_WANTED[args.verb]}"
