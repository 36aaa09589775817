"""`kl-companion audit`: which objective a loss minimizes."""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kl_companion.cli.loading import (
    as_script,
    command_line_of,
    gradients_of,
    load_function,
    python_function,
)
from kl_companion.cli.loss_values import check_values
from kl_companion.cli.printing import note, progress, refuse_options
from kl_companion.cli.texts import as_python, decoded, without_return
from kl_companion.ending import alone, time_limit

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.card import AnyVerdict

HELP = "which objective a loss minimizes"
_OF_FUNCTIONS = ("level", "group_size", "map", "update", "advantage", "placement", "details", "json")
_GUARDED = ("timeout",)  # options of what is executed
_SECONDS = 60.0  # that the file's code may run
# Options that have no effect, of each thing that the verb does, and the reason.
_REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a setting": ((*_OF_FUNCTIONS, *_GUARDED, "set"), "a setting has its own, and a card of text"),
    "--release": ((*_OF_FUNCTIONS, *_GUARDED), "a release has its own settings, and a card of text"),
    "an estimator": (
        ("map", "set", "update", "advantage", *_GUARDED),
        "they are for path/file.py:function, a loss",
    ),
    "--update": (
        ("level", "placement", "off_policy", "scale"),
        "a whole update is looked at as it stands, on fresh and on stale samples",
    ),
    "--json": (("details",), "the data have every number"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.description = (
        "Which objective a loss minimizes. path/file.py:function executes that file, with all "
        "that it does, as python path/file.py would: audit only files that you trust."
    )
    parser.add_argument(
        "loss",
        help="an estimator, path/file.py:function (executed), a framework's setting, or - for text that is "
        "pasted: a function, or lines of a training loop that end in loss = ... (executed)",
    )
    parser.add_argument(
        "--want", help="a divergence (reverse_kl) or objective; exit 1 when the loss does not minimize it"
    )
    parser.add_argument(
        "--placement", choices=("loss", "reward"), help="of an estimator or a loss of one (loss)"
    )
    parser.add_argument("--level", choices=("token", "sequence"), help="for functions of logp and ref_logp")
    parser.add_argument(
        "--group-size", type=int, help="answers per batch, enumerated, instead of the limit of large batches"
    )
    parser.add_argument(
        "--map", action="append", default=[], metavar="THEIRS=OURS", help="what a parameter means (repeat it)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="the value of an option (repeat it)"
    )
    parser.add_argument(
        "--off-policy", action="store_true", help="look at, and judge --want by, off-policy samples"
    )
    parser.add_argument("--scale", type=float, help="one size of log-ratios instead of small and large")
    parser.add_argument(
        "--release", metavar="VERSION", help="of a framework: the loss as that release ships it (trl.grpo)"
    )
    parser.add_argument(
        "--update", action="store_true", help="the whole update, with rewards: what beta means in it"
    )
    parser.add_argument(
        "--advantage", help="with --update: what is made of rewards before the loss (group_std, ...)"
    )
    parser.add_argument("--details", action="store_true", help="residuals, curl and the registered names too")
    parser.add_argument("--json", action="store_true", help="the verdict as data")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help=f"how long the file's code may run ({_SECONDS:g})"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    """Print the verdict; 1 when ``--want`` is not met."""
    gc.disable()  # libraries leave no garbage while they load, and looking for it takes a tenth of the time
    import torch

    from kl_companion.auditing.reading.preferences import PreferenceLoss
    from kl_companion.frameworks.printing import is_framework, print_audits

    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)  # matrices of a few entries: threads only wait for each other
    for kind in _kinds(args, framework=is_framework(args.loss)):
        refuse_options(args, args.loss if kind == "a setting" else kind, *_REFUSED[kind])
    if args.release is not None:
        return _release(args)
    if is_framework(args.loss):
        return print_audits(
            args.loss,
            want=args.want,
            off_policy=True if args.off_policy else None,
            scale=args.scale,
            progress=progress(quiet=args.quiet),
        )
    color = colored(sys.stdout)
    with ExitStack() as stack:
        text = _pasted(args.quiet) if args.loss == "-" else ""
        stack.enter_context(alone())
        try:
            loss = _loaded(args, text, stack)
            try:
                verdict = _judged(loss, args)
            except ValueError:
                check_values(loss, **_given(args))
                raise
            if not getattr(verdict, "matches", True):
                check_values(loss, **_given(args))
        except PreferenceLoss as answer:
            said, met = json.dumps(answer.data, indent=2) if args.json else str(answer), args.want is None
        else:
            said, met = _said(verdict, args, color), verdict.met is not False
    print(said)
    return 0 if met else 1


def _loaded(args: argparse.Namespace, text: str, stack: ExitStack) -> Any:
    """The loss that was named or pasted, inside of what guards the audit against its code."""
    from kl_companion.auditing.reading.sources import FILE, loss_in, pasted_loss

    target, seconds = stack.enter_context(as_python(args.loss)), args.timeout or _SECONDS
    if target.endswith(".py"):
        tree = _parsed(target)
        if not any(isinstance(x, ast.FunctionDef | ast.ClassDef) for x in tree.body):
            target, text = "-", decoded(Path(target).read_bytes(), target)  # lines of a training loop
        else:
            target = f"{target}:{loss_in(tree, target)}"
    if target == "-":
        stack.enter_context(as_script("-"))
        stack.enter_context(time_limit(seconds, FILE))
        with command_line_of("the text"), gradients_of("the text"):
            return python_function(pasted_loss(without_return(text)))
    if ".py:" not in target:
        return target
    file = target.rpartition(":")[0]
    note(f"executing {file}, as python does with a file of yours", quiet=args.quiet)
    stack.enter_context(as_script(file))  # a function may import from its folder when it is called
    stack.enter_context(time_limit(seconds, file))
    return load_function(target, tell=lambda said: note(said, quiet=args.quiet))


def _kinds(args: argparse.Namespace, *, framework: bool) -> list[str]:
    """Return the keys of `_REFUSED` that a command is of."""
    loss = args.loss
    whole = args.update or args.advantage is not None
    first = "--release" if args.release is not None else "a setting" if framework else ""
    if first:
        return [first]
    of_name = loss != "-" and not re.search(r"\.(py|ipynb)(:|$)", loss)
    kinds = {"an estimator": of_name, "--update": whole and not of_name, "--json": args.json}
    return [kind for kind, holds in kinds.items() if holds]


def _judged(loss: Any, args: argparse.Namespace) -> AnyVerdict:
    """The verdict on a loss, or on a whole update."""
    from kl_companion.auditing import audit
    from kl_companion.auditing.updates.audit import audit_update

    both = {"want": args.want, "group_size": args.group_size, **_given(args)}
    told = progress(quiet=args.quiet)
    if args.update or args.advantage is not None:
        return audit_update(loss, advantage=args.advantage, **both, progress=told)
    return audit(
        loss,
        placement=args.placement or "loss",
        level=args.level,
        off_policy=True if args.off_policy else None,
        scale=args.scale,
        **both,
        progress=told,
    )


def _said(verdict: AnyVerdict, args: argparse.Namespace, color: bool) -> str:
    """The card, or the data."""
    from kl_companion.auditing.judgment.card import card

    if args.json:
        return json.dumps(verdict.to_dict(), indent=2, allow_nan=False)
    return card(verdict, details=args.details, color=color)


def _parsed(file: str) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        ValueError: there is no such file, or it is no Python.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"{file!r} is not a file, expected path/file.py:function")
    try:
        return ast.parse(decoded(path.read_bytes(), file))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{file} is no Python: {error}") from None


def _pasted(quiet: bool) -> str:
    """What stands in the standard input; somebody who types it is told how it ends."""
    if sys.stdin.isatty() and not quiet:
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        print(f"  paste your loss, then {end}", file=sys.stderr, flush=True)
    data = getattr(sys.stdin, "buffer", sys.stdin).read()
    return decoded(data, "the text") if isinstance(data, bytes) else data


def _release(args: argparse.Namespace) -> int:
    """Print what a past release of a framework minimizes; 1 when ``--want`` is not met."""
    from kl_companion.frameworks.history.printing import print_release

    return print_release(
        args.loss,
        args.release,
        _given(args)["options"],
        want=args.want,
        off_policy=True if args.off_policy else None,
        scale=args.scale,
        progress=progress(quiet=args.quiet),
    )


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """What ``--map`` and ``--set`` say."""
    from kl_companion.auditing.reading.sources import pair, value_of

    return {
        "roles": dict(pair(x, "--map") for x in args.map),
        "options": {name: value_of(text) for name, text in (pair(x, "--set") for x in args.set)},
    }


def colored(stream: Any) -> bool:
    """Whether a stream is a terminal whose reader has not asked for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
