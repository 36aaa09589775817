"""A file of the user's is executed as python would: its folder, its arguments, and how it may end."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kl_companion.ending import no_exit


class Refused(SystemExit):
    """A command line that a parser of the file refused."""


_entered: list[str] = []  # files that `as_script` is inside of


@contextmanager
def as_script(path: str, arguments: Sequence[str] = ()) -> Iterator[None]:
    """Have ``sys.argv`` and ``sys.path`` as they are in ``python path arguments``, and `no_exit` inside.

    The folder of the file stays on the path inside, for imports that its functions make when they are called.

    Args:
        path: The file.
        arguments: Of its command line.
    """
    if path in _entered:
        yield
        return
    argv, search = sys.argv, sys.path[:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    _entered.append(path)
    try:
        with no_exit():
            yield
    finally:
        _entered.remove(path)
        sys.argv, sys.path[:] = argv, search


@contextmanager
def command_lines() -> Iterator[list[str]]:
    """Note the parsers that read the command line inside; one that refuses it raises `Refused`."""
    notes: list[str] = []
    parse, refuse = argparse.ArgumentParser.parse_known_args, argparse.ArgumentParser.error

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None, **options: Any) -> Any:
        if args is None:
            notes.append("")
        return parse(self, args, namespace, **options)

    def error(self: Any, message: str) -> NoReturn:
        if not notes:
            refuse(self, message)
        notes.append(message)
        raise Refused(2)

    setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)  # noqa: B010
    setattr(argparse.ArgumentParser, "error", error)  # noqa: B010
    try:
        yield notes
    finally:
        setattr(argparse.ArgumentParser, "parse_known_args", parse)  # noqa: B010
        setattr(argparse.ArgumentParser, "error", refuse)  # noqa: B010


def load_function(
    target: str, *, trainers: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Any:
    """Return the function of ``path/file.py:name``.

    Args:
        target: The file, a colon, and a name with or without dots.
        trainers: Whether an object that trains is welcome too.
        tell: Called with a sentence where the file parses the command line and goes on without arguments.

    Raises:
        ValueError: no such file or name, or a file that fails, exits or refuses its command line.
    """
    path_text, _, name = target.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(f"{path_text!r} is not a file, expected path/file.py:function")
    label = f"_reader_{path.stem}"  # its own name, so that a file called torch.py hides nothing
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path_text!r} cannot be imported, expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # dataclasses and pickles look their module up
    try:
        with as_script(path_text), command_lines() as notes:
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's own code: whatever it raises is the answer
        raise ValueError(_failure(path_text, error, notes)) from error
    if notes:
        tell(
            f"{path_text} parses the command line when it is imported: it gets no arguments: its defaults "
            "hold. For other values put parse_args() under __main__ and make them parameters, for --set"
        )
    attribute: Any = module
    for part in name.split("."):
        functions = [n for n, v in vars(attribute).items() if callable(v) and _is_theirs(v, label)]
        named = getattr(attribute, part, None)
        if not callable(named) and not (trainers and hasattr(named, "train")):
            from kl_companion.checks import unknown_name

            raise unknown_name(f"function of {path_text}:", name, functions or ["(none)"])
        attribute = named
    return attribute


def _failure(path: str, error: BaseException, notes: list[str]) -> str:
    if notes and isinstance(error, SystemExit):
        why = f" and refuses it ({notes[-1]})" if notes[-1] else f" and exits ({error.code!r})"
        return (
            f"{path} parses the command line when it is imported{why}, expected a file that can be imported: "
            'put parse_args() under if __name__ == "__main__":, or give its options defaults'
        )
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        said = f"sys.exit({error.code!r})"
    return f"importing {path} failed with {said}, expected a file that runs"


def _is_theirs(x: Any, label: str) -> bool:
    return getattr(x, "__module__", "") == label and not getattr(x, "__name__", "_").startswith("__")
