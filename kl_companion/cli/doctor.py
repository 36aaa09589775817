"""`kl-companion doctor`: what a training script's own code does."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import runpy
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kl_companion.cli.loading import as_script, command_lines, gradients_of, load_function
from kl_companion.cli.printing import note, progress
from kl_companion.cli.texts import as_python, decoded
from kl_companion.ending import alone, time_limit

_SECONDS = 600.0  # that a step may run, all calls together
HELP = "what a trainer's own code does, found on a small world"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.description = (
        "Run a trainer's own code for log-probs, advantages and loss on a small world that can be "
        "enumerated, and say whether mask, reference, temperature, samples and denominators are what they "
        "should be, and what the whole update maximizes. The file is executed, with all that it does, as "
        "python would: examine only files that you trust. Exit status 0 when everything that matters was "
        "checked and nothing is wrong, 1 when something is wrong, 3 when nothing is and something that "
        "matters, or the whole update, could not be checked."
    )
    parser.add_argument(
        "target",
        help="path/train.py (executed up to its call of trainer.train()), or path/file.py:name of a trainer "
        "object, of a function without parameters that makes one, or of a step(model, batch)",
    )
    parser.add_argument("--args", default="", help="arguments of the training script, in one string")
    parser.add_argument("--temperature", type=float, help="of the sampler, where the trainer does not say it")
    parser.add_argument("--top-p", type=float, help="of the sampler")
    parser.add_argument("--top-k", type=int, help="of the sampler")
    parser.add_argument("--updates", type=int, help="optimizer steps on one batch of answers")
    parser.add_argument("--accumulate", type=int, help="micro-batches of a step")
    parser.add_argument("--beta", type=float, help="the KL coefficient")
    parser.add_argument(
        "--engine",
        action="store_true",
        help="old log-probs are the sampling engine's own, truncation and all",
    )
    parser.add_argument(
        "--alignment",
        choices=("completion", "full", "shifted"),
        default="completion",
        help="of masks and log-probs in the batch of a step: one per completion token, one per input id, or "
        "one per input id but the first",
    )
    parser.add_argument(
        "--summed", action="store_true", help="gradients of micro-batches are added up, not averaged"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"how long the file's code may run ({_SECONDS:g}; of a script without a limit)",
    )
    parser.add_argument("--quick", action="store_true", help="without the audit of the whole update")
    parser.add_argument("--json", action="store_true", help="the findings as data")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis; return its status."""
    from kl_companion.monitor.doctor import diagnose

    arguments = shlex.split(args.args)
    with ExitStack() as stack:
        target = stack.enter_context(as_python(args.target))
        file, _, name = target.rpartition(":") if ".py:" in target else (target, "", "")
        note(f"executing {file}, as python does with a file of yours", quiet=args.quiet)
        stack.enter_context(as_script(file, arguments))  # it may import from its folder when it is called
        stack.enter_context(alone())
        if args.timeout or name:
            stack.enter_context(time_limit(args.timeout or _SECONDS, file))
        found = diagnose(
            examined(target, arguments, tell=lambda said: note(said, quiet=args.quiet)),
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            updates=args.updates,
            accumulate=args.accumulate,
            beta=args.beta,
            engine=args.engine or None,
            alignment=args.alignment,
            summed=args.summed,
            update=not args.quick,
            progress=progress(quiet=args.quiet),
        )
    print(json.dumps(found.to_dict(), indent=2) if args.json else found)
    return found.status


def examined(target: str, arguments: list[str], tell: Callable[[str], None] = lambda _: None) -> Any:
    """Return the trainer of a training script, or the object that a target names.

    Args:
        target: path/train.py, or path/file.py:name.
        arguments: Of the training script.
        tell: Called with a sentence where a file parses the command line.

    Raises:
        ValueError: no such file or name, or a script that never trains.
    """
    if ".py:" not in target:
        return trainer_of(target, arguments, tell)
    if arguments:
        raise ValueError(
            f"{target} got the arguments {arguments}, expected none: they are for a whole script"
        )
    found = load_function(target, trainers=True, tell=tell)
    return found() if inspect.isroutine(found) and not inspect.signature(found).parameters else found


class _Caught(BaseException):
    """A trainer that was about to train; no ``except Exception`` of the script's stops it."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self.trainer = trainer


def trainer_of(path: str, arguments: list[str], tell: Callable[[str], None] = lambda _: None) -> Any:
    """Execute a training script up to its call of ``trainer.train()``, and give that trainer.

    A file that has no word of a trainer is imported, and not executed as a script, which would begin to
    train: its only function of a model and a batch is given.

    Raises:
        ValueError: no such file, a script that fails, or one that never trains and has no such function.
        ImportError: transformers is not installed.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path!r} is not a file, expected path/train.py or path/file.py:name")
    source = decoded(Path(path).read_bytes(), path)
    if "rainer" not in source and (name := _step_in(source, path)):
        tell(f"{path} has no trainer: {path}:{name} is examined")
        return load_function(f"{path}:{name}", tell=tell)
    try:
        from transformers import Trainer
    except ModuleNotFoundError as error:
        raise ImportError(
            "examining a training script needs transformers: pip install 'kl-companion[trl]'", name=error.name
        ) from None

    def train(self: Any, *_: Any, **__: Any) -> None:
        raise _Caught(self)

    stock = Trainer.train
    setattr(Trainer, "train", train)  # noqa: B010 (a method, to a type checker)
    try:
        with as_script(path, arguments), command_lines() as notes, gradients_of(path):
            runpy.run_path(path, run_name="__main__")
    except _Caught as caught:
        return caught.trainer
    except (Exception, SystemExit) as error:  # the reader's own code: whatever it raises is the answer
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            said = f"sys.exit({error.code!r})"
            if notes and notes[-1]:
                said += f" ({notes[-1]}; its arguments are given in one string: --args '...')"
        raise ValueError(f"{path} failed with {said}, before it called trainer.train()") from error
    finally:
        setattr(Trainer, "train", stock)  # noqa: B010
    name = _step_in(source, path)
    other = f"; or name its step: kl-companion doctor {path}:{name}" if name else ""
    raise ValueError(
        f"{path} ran to its end without calling trainer.train(), expected a script that trains{other}"
    )


def _step_in(source: str, path: str) -> str:
    """Return the name of the function of a model and a batch that no other such function uses, "" of none.

    Raises:
        ValueError: there are several; or there is none, and there is a loss of log-probs.
    """
    from kl_companion.auditing.reading.sources import SeveralLosses, loss_in
    from kl_companion.monitor.doctor.step import is_step

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # said by Python, when it is executed
        return ""
    functions = [x for x in tree.body if isinstance(x, ast.FunctionDef)]
    steps = [x for x in functions if is_step([a.arg for a in x.args.args])]
    try:
        if steps:
            return loss_in(ast.Module([*steps], []), path)
        loss = loss_in(ast.Module([*functions], []), path) if "rainer" not in source else ""
    except SeveralLosses as error:
        if not steps:
            return ""
        lines = ", ".join(f"kl-companion doctor {path}:{name}" for name in error.names[:4])
        raise ValueError(f"{path} has several steps, expected one: {lines}") from None
    except ValueError:
        return ""
    if loss:
        raise ValueError(
            f"{path} has no step(model, batch) and no trainer, expected one; its function {loss} may be a "
            f"loss: kl-companion audit {path}:{loss}"
        )
    return ""
