"""A file of the user's is executed as python would: its folder, its arguments, and how it may end."""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kl_companion.ending import no_exit


class Refused(SystemExit):
    """A command line that a parser of the file refused."""


_READER = "_reader"  # packages of files that were given
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
    argv, search, finders = sys.argv, sys.path[:], sys.meta_path[:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    _entered.append(path)
    try:
        with no_exit():
            yield
    finally:
        _entered.remove(path)
        sys.argv, sys.path[:], sys.meta_path[:] = argv, search, finders
        for name in [n for n, m in sys.modules.items() if _stands_in(m)]:
            del sys.modules[name]


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


@contextmanager
def command_line_of(where: str) -> Iterator[None]:
    """Inside, a parser of the text that refuses the command line raises ValueError, as an exit does."""
    with command_lines() as notes:
        try:
            yield
        except SystemExit as error:
            raise ValueError(_failure(where, error, notes)) from error


@contextmanager
def gradients_of(path: str) -> Iterator[None]:
    """Raise ValueError where what is executed inside switches gradients off and leaves them off."""
    import torch

    before = torch.is_grad_enabled()
    try:
        yield
        switched_off = before and not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(before)
    if switched_off:
        raise ValueError(
            f"{path} switches gradients off when it is executed (torch.set_grad_enabled(False)), expected "
            "gradients: put what needs none under torch.no_grad()"
        )


def python_function(loss: Any) -> Any:
    """Return a loss; ValueError for one that torch.jit has compiled, whose parameters nothing can read."""
    import torch

    if isinstance(loss, torch.jit.ScriptFunction | torch.jit.ScriptModule):
        name = getattr(loss, "name", type(loss).__name__)
        raise ValueError(
            f"{name} is compiled by torch.jit, expected the Python function: leave torch.jit out"
        )
    return loss


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
    label = f"{_package_of(path)}.{path.stem}"  # its own name, so that a file called torch.py hides nothing
    stand_ins = _StandIns()
    with as_script(path_text), command_lines() as notes, gradients_of(path_text):
        sys.meta_path.insert(0, stand_ins)
        while True:
            try:
                module = _executed(label, path)
                break
            except ModuleNotFoundError as error:  # again without it: a loss may not need it
                if not stand_ins.add(error.name or ""):
                    raise ValueError(_failure(path_text, error, notes)) from error
            except (Exception, SystemExit) as error:  # the user's own code: whatever it raises is the answer
                raise ValueError(_failure(path_text, error, notes)) from error
    if said := stand_ins.said():
        tell(said)
    if notes:
        tell(
            f"{path_text} parses the command line when it is imported: it gets no arguments: its defaults "
            "hold. For other values put parse_args() under __main__ and make them parameters, for --set"
        )
    attribute: Any = module
    owner: Any = None
    for part in name.split("."):
        functions = [n for n, v in vars(attribute).items() if callable(v) and _is_theirs(v, label)]
        named = getattr(attribute, part, None)
        if not callable(named) and not (trainers and hasattr(named, "train")):
            from kl_companion.checks import unknown_name

            raise unknown_name(f"function of {path_text}:", name, functions or ["(none)"])
        owner, attribute = attribute, named
    if isinstance(owner, type) and isinstance(attribute, types.FunctionType):
        attribute = _method_of(owner, attribute, name)
    return stand_ins.with_arrays(python_function(attribute))


def _package_of(path: Path) -> str:
    """Make packages for the folder of a file and those above it, not executed; return the name of its own."""
    folders = [path.resolve().parent]
    while (folders[-1] / "__init__.py").is_file() and len(folders) < 5:
        folders.append(folders[-1].parent)
    name = ""
    for i, folder in enumerate(reversed(folders)):
        name = f"{name}.{folder.name}" if i else f"{_READER}_{path.stem}"
        package = types.ModuleType(name)
        vars(package).update(__path__=[str(folder)], __package__=name)
        sys.modules[name] = package
    return name


def _executed(label: str, path: Path) -> Any:
    """The module of a file."""
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(path)!r} cannot be imported, expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    from kl_companion.auditing.reading.helpers import lend

    lend(module, ast.parse(path.read_bytes()))
    return module


def _method_of(owner: type, method: types.FunctionType, name: str) -> types.FunctionType:
    """The method as one of the class that was named, where it stands in a base class of it."""
    if method.__qualname__ == f"{owner.__qualname__}.{method.__name__}":
        return method
    copy = types.FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__
    )
    copy.__kwdefaults__, copy.__dict__ = method.__kwdefaults__, method.__dict__
    copy.__qualname__, copy.__module__ = name, owner.__module__
    return copy


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are not installed: JAX and MLX in PyTorch, of others names without a use."""

    def __init__(self) -> None:
        self._absent: list[str] = []
        self._arrays: dict[str, Any] = {}

    def add(self, module: str) -> bool:
        """Find this module from now on; False where it is found already."""
        package = module if module.startswith(_READER) else module.partition(".")[0]
        if not package or package in self._absent:
            return False
        self._absent.append(package)
        from kl_companion.frameworks.jax_numpy import STAND_INS

        self._arrays |= {n: m for n, m in STAND_INS.items() if n.partition(".")[0] == package}
        return True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module that was added."""
        known = any(f"{name}.".startswith(f"{x}.") for x in self._absent)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> Any:
        """The module that stands in."""
        from kl_companion.auditing.reading.stand_ins import AbsentModule

        return self._arrays.get(spec.name) or AbsentModule(spec.name)

    def exec_module(self, module: Any) -> None:
        """Nothing: it has its names."""

    def said(self) -> str:
        """A sentence on what is not installed."""
        arrays = {n.partition(".")[0] for n in self._arrays}
        absent = [re.sub(rf"{_READER}_\w+", "", x) for x in self._absent if x not in arrays]
        said = []
        if arrays:
            said.append(
                f"PyTorch stands in for {', '.join(sorted(arrays))}; in a change that is printed, x.detach() "
                "is stop_gradient(x)"
            )
        if absent:
            said.append(
                f"not installed: {', '.join(absent)}; a loss that computes with names of it is refused, any "
                "other is audited"
            )
        return ". ".join(said)

    def with_arrays(self, loss: Any) -> Any:
        """The loss, given arrays where it is written in JAX or MLX."""
        if not self._arrays or not (isinstance(loss, type) or inspect.isfunction(loss)):
            return loss
        from kl_companion.frameworks.jax_numpy import on_arrays

        return on_arrays(loss)


def _stands_in(module: Any) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _StandIns)


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
