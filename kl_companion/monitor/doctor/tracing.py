"""Which line of a trainer does what: a trace of its tensor operations, and of where their inputs come from.

While a `Trace` is entered, every operation is noted with the line of the trainer's code that calls it and
with the *origins* of its inputs: the policy's forward pass, the reference's, a mask, advantages. So the line
where the two models' log-probs meet, or the line where a KL meets advantages, can be named.
"""

from __future__ import annotations

import contextvars
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

POLICY, REFERENCE, FROZEN = "policy", "reference", "policy without gradient"
WEIGHTS = "the reference's weights"
_LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "peft", "contextlib", "functools")
_WRAPPERS = {"trl": ("trainer/utils.py", "extras/profiling.py", "kernels/chunked_logprob.py")}
_COPIES = ("to", "cuda", "cpu", "detach", "clone", "float", "double", "contiguous", "get")
_OWN, _MODEL = str(Path(__file__).parent), "tiny_model.py"
# modules of the doctor that torch calls on the way of the trainer's own calls
_HOOKS = ("tracing.py", "gradients.py", "double_precision.py")
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_current: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)


class Line(NamedTuple):
    """A line of code; ``str()`` is ``file.py:12: the code``."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """The code on it."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{_shown(self.file)}:{self.number}: {self.text}"


class Operation(NamedTuple):
    """One operation.

    Attributes:
        name: Of the function: ``"sub"``, ``"log_softmax"``.
        origins: Of each tensor that it was given, in order.
        line: The line of the trainer's code, None where there is none on the stack.
        result: Shape of what came out, None if that is no tensor.
        made: Which tensor that is, by a number.
        reduces: One number came out of several.
        call: The outermost line of the trainer's code that led there.
        value: What came out.
        graded: How many of the inputs carry a gradient.
    """

    name: str
    origins: tuple[frozenset[str], ...]
    line: Line | None
    result: torch.Size | None
    made: int
    reduces: bool
    call: Line | None = None
    value: torch.Tensor | None = None
    graded: int = 0

    @property
    def all_origins(self) -> frozenset[str]:
        """Origins of all its inputs."""
        return frozenset().union(*self.origins)


class Forward(NamedTuple):
    """A forward pass of the tiny model.

    Attributes:
        model: Whose weights: "policy" or "reference".
        gradient: Whether it carries a gradient.
        base: The policy with its adapters off.
        line: Where it was called.
        scoring: It belongs to what is done once for a batch, before the loss.
        call: The outermost line of the trainer's that led there: which of several calls of one helper.
        strays: What was seen besides an answer's own prompt and its tokens, in words; () if nothing.
        training: Whether the model was in training mode.
    """

    model: str
    gradient: bool
    base: bool
    scoring: bool
    line: Line | None
    call: Line | None
    strays: tuple[str, ...]
    training: bool = False


class Trace(TorchFunctionMode):
    """Notes operations and forward passes while it is entered.

    Attributes:
        operations: In the order in which they were called.
        forwards: Forward passes of the tiny models.
        scoring: Whether what follows is done once for a batch, before the loss.
        merged: Where adapters were put into the policy's weights.
        moved: Where the reference's weights were changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.forwards: list[Forward] = []
        self.merged: Line | None = None
        self.moved: Line | None = None
        self.scoring = False
        self._paused = False
        self._origins: dict[int, frozenset[str]] = {}
        self._made_of: dict[int, set[int]] = {}
        self._kept: list[torch.Tensor] = []  # a tensor that is freed would give its id to another

    def __enter__(self) -> Trace:
        self._before = _current.set(self)
        self._applied = torch.autograd.Function.__dict__["apply"]
        setattr(torch.autograd.Function, "apply", classmethod(self._apply))  # noqa: B010 (a method, to mypy)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        setattr(torch.autograd.Function, "apply", self._applied)  # noqa: B010
        _current.reset(self._before)

    def _apply(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Functions with a backward of their own are operations too; the mode does not see them."""
        with self.paused():
            out = self._applied.__func__(function, *args, **kwargs)
        self._note(function.__name__, [*args, *kwargs.values()], out)
        return out

    def label(self, x: Any, origin: str) -> None:
        """Say where a tensor comes from."""
        if isinstance(x, torch.Tensor):
            self._set(x, frozenset([origin]))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if args and name.endswith("_") and self._origins.get(id(args[0])) == {WEIGHTS} and not self._paused:
            self.moved = self.moved or trainer_line()
        self._note(getattr(func, "__name__", "").strip("_"), [*args, *(kwargs or {}).values()], out)
        return out

    def _note(self, name: str, given: list[Any], out: Any) -> None:
        if self._paused:
            return
        inputs = list(_tensors(given))
        of = tuple(self._origins.get(id(x), frozenset()) for x in inputs)
        origins = frozenset().union(*of)
        results = list(_tensors([out]))
        if not origins or not results:
            return
        for x in results:
            self._set(x, origins | self._origins.get(id(x), frozenset()))
            self._made_of.setdefault(id(x), set()).update(map(id, inputs))
        lines = [*trainer_lines()]
        if name != "get" and lines:  # no attribute, and not the doctor's own
            first = results[0]
            reduces = any(x.numel() > 1 for x in inputs) and first.numel() == 1
            self.operations.append(
                Operation(
                    name,
                    of,
                    lines[0],
                    first.shape,
                    id(first),
                    reduces,
                    lines[-1],
                    first,
                    sum(x.requires_grad for x in inputs),
                )
            )

    def forget(self) -> None:
        """Drop what was noted so far: it was an attempt that failed."""
        self.operations.clear()
        self.forwards.clear()
        self.merged = None

    def reads(self, origin: str) -> bool:
        """Whether an operation other than a copy reads something of this origin."""
        return any(origin in op.all_origins and op.name not in _COPIES for op in self.operations)

    def keep_what_made(self, *losses: torch.Tensor) -> None:
        """Forget the operations that no loss is made of: what a trainer only logs."""
        found, todo = {id(x) for x in losses}, [id(x) for x in losses]
        while todo:
            new = self._made_of.get(todo.pop(), set()) - found
            found |= new
            todo += new
        self.operations = [op for op in self.operations if op.made in found]

    def _set(self, x: torch.Tensor, origins: frozenset[str]) -> None:
        self._origins[id(x)] = origins
        self._kept.append(x)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing: what happens inside is the doctor's own."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def meeting(self, *origins: str | tuple[str, ...]) -> Line | None:
        """The first line on which inputs of all these origins come together; a tuple is one of several.

        None of the inputs alone has them all.
        """
        wanted = [(x,) if isinstance(x, str) else x for x in origins]

        def holds(found: frozenset[str]) -> bool:
            return all(any(name in found for name in names) for names in wanted)

        return _first(
            op.line for op in self.operations if holds(op.all_origins) and not any(map(holds, op.origins))
        )

    def source(self, factor: str, *origins: str) -> Line | None:
        """The line where the origins meet, of what is multiplied by something of another origin later on."""
        for op in self.operations:
            if factor in op.all_origins and set(origins) <= op.all_origins:
                of, todo = {op.made}, [op.made]
                while todo:
                    new = self._made_of.get(todo.pop(), set()) - of
                    of |= new
                    todo += new
                wanted = set(origins)
                return _first(
                    x.line
                    for x in self.operations
                    if x.made in of
                    and wanted <= x.all_origins
                    and factor not in x.all_origins
                    and not any(wanted <= y for y in x.origins)
                )
        return None

    def last(self, origins: Iterable[str], names: Iterable[str] = ()) -> Line | None:
        """The last line with an operation of one of these names on something of one of these origins."""
        of, named = set(origins), set(names)
        return _first(
            op.line
            for op in reversed(self.operations)
            if op.all_origins & of and (not named or op.name in named)
        )

    def first(self, origins: Iterable[str], names: Iterable[str]) -> Line | None:
        """The first such line."""
        of, named = set(origins), set(names)
        return _first(op.line for op in self.operations if op.all_origins & of and op.name in named)


def current() -> Trace | None:
    """The trace that is entered."""
    return _current.get()


def label(x: Any, origin: str) -> None:
    """Say where a tensor comes from, if a trace is entered."""
    trace = current()
    if trace is not None:
        trace.label(x, origin)


def forget() -> None:
    """What a trace that is entered has noted so far was an attempt that failed."""
    trace = current()
    if trace is not None:
        trace.forget()


@contextmanager
def scoring() -> Iterator[None]:
    """What happens inside is done once for a batch, before the loss."""
    trace = current()
    if trace is not None:
        trace.scoring = True
    try:
        yield
    finally:
        if trace is not None:
            trace.scoring = False


@contextmanager
def unnoted() -> Iterator[None]:
    """A trace that is entered notes nothing inside."""
    trace = current()
    with nullcontext() if trace is None else trace.paused():
        yield


def trainer_line() -> Line | None:
    """The innermost line on the stack that is no library's; None if the doctor's own code comes first."""
    return _first(trainer_lines())


def trainer_lines(*, through_model: bool = False) -> Iterator[Line]:
    """The trainer's lines on the stack, from the innermost on, up to where the doctor called it.

    Args:
        through_model: The doctor's tiny model is on the stack, called by the trainer.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            if not file.endswith(_HOOKS) and not (through_model and file.endswith(_MODEL)):
                return
        elif not file.startswith("<") and not _in_library(file):
            yield Line(file, frame.f_lineno)
        frame = frame.f_back


def outside_libraries(file: str) -> bool:
    """Whether a file is the user's: neither a library's nor the package's own."""
    return not (_in_library(file) or file.startswith(_PACKAGE) or "site-packages" in Path(file).parts)


def _in_library(file: str) -> bool:
    return file.startswith(_library_files())


@cache
def _library_files() -> tuple[str, ...]:
    """Return the folders and files of the libraries: a user's folder may be called ``datasets``, too."""
    names = dict.fromkeys(_LIBRARIES, ("",)) | _WRAPPERS
    return tuple(place + file for name, files in names.items() for place in _places(name) for file in files)


def _places(name: str) -> list[str]:
    """Return a package's folders, which end in a separator, or a module's file; nothing if not installed."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a specification, which a test put in the place of the package
        spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:  # a folder without __init__.py is a user's
        return []
    folders = spec.submodule_search_locations
    return [spec.origin] if folders is None else [f"{folder}{os.sep}" for folder in folders]


def _shown(file: str) -> str:
    """A path from the library's name, or from the working folder, on."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    try:
        return Path(file).relative_to(Path.cwd()).as_posix()
    except ValueError:
        return Path(file).name


def _first(lines: Iterable[Line | None]) -> Line | None:
    return next((line for line in lines if line is not None), None)


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)
