"""A case of bad input, what is said to it, and whether that can be understood."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kl_companion.files import ROOT_VARIABLE

SHORTEST, LONGEST = 20, 400
_WANTED = re.compile(
    r"\bexpected\b|(?:\bis|\bare|,) wanted\b|\bneed(?:s|ed)?\b|\brequired\b|\bDid you mean\b|Known: "
    r"|Make it: |Say what |\bchoose from\b|\binvalid \w+ value\b|pip install|\bis not a file\b"
    r"|: (?:use|give|load|lower|set|work) "
)
_QUOTED = re.compile(r"--\w|\{|'|\"|\[|\d|\btorch\.|=|\.[a-z]+\b")
_KIND = re.compile(
    r"\b(?:a|an) [a-zA-Z]+, expected|\b(?:holds|returned|reads|requires|required|missing|NaN|empty|of its own"
    r"|nothing|neither|no|none|None|not|different|twice|another"
    r"|nan|inf|is (?:True|False|one|list)|is on [a-z]+|got [A-Za-z]+, expected|got a [A-Z]\w+)\b"
)
_TORCH = ("size mismatch", "must match the size", "has no attribute", "unsupported operand", "Traceback")
_folder: ContextVar[Path] = ContextVar("folder")


class Case(NamedTuple):
    """One kind of bad input at one entry point.

    Attributes:
        entry: A public name of the package, a dotted name below it, or a command.
        kind: What is wrong with the input, in a few words.
        call: Feeds it; it raises, or returns the `Exit` of a command.
        exception: Name of the exception's type, or ``"exit status 2"``.
        names: Texts that the message contains in this order, " .. " between them.
    """

    entry: str
    kind: str
    call: Callable[[], object]
    exception: str = "ValueError"
    names: str = ""


class Exit(NamedTuple):
    """How a command ended: its status, and what it wrote to the standard error stream."""

    status: int
    stderr: str


class Refusal(NamedTuple):
    """What a case was answered.

    Attributes:
        entry: As in the case.
        kind: As in the case.
        exception: Name of the exception's type, or ``"exit status 2"``; empty where nothing was refused.
        message: What was said, without the path of the folder that the case worked in.
    """

    entry: str
    kind: str
    exception: str
    message: str


def folder() -> Path:
    """The temporary folder of the case that is being run; it is gone afterwards."""
    return _folder.get()


@contextmanager
def project_root(root: Path | None) -> Iterator[None]:
    """Work where the sources of the book are in a folder, or nowhere."""
    before = os.environ.get(ROOT_VARIABLE)
    os.environ[ROOT_VARIABLE] = str(root or "")
    try:
        yield
    finally:
        os.environ.pop(ROOT_VARIABLE)
        if before is not None:
            os.environ[ROOT_VARIABLE] = before


def run(case: Case) -> Refusal:
    """Run a case in a temporary folder, silently, and keep what it was answered.

    Whatever the case raises is its answer; a case that is not refused has an empty ``exception``.
    """
    exception, message = "", ""
    with TemporaryDirectory(prefix="kl-refusals-") as made, warnings.catch_warnings():
        here = Path(made).resolve()
        token = _folder.set(here)
        warnings.simplefilter("ignore")  # the tests' own checker of types among them
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                answer = case.call()
        except Exception as error:  # whatever is raised is what a reader would see
            exception, message = type(error).__name__, str(error)
        else:
            if isinstance(answer, Exit) and answer.status == 2:
                exception, message = "exit status 2", answer.stderr
        finally:
            _folder.reset(token)
    return Refusal(case.entry, case.kind, exception, message.replace(f"{here}/", "").replace(str(here), "."))


def parts(message: str) -> tuple[str, str]:
    """A message cut in two: what was got, and from the word that announces it on, what was wanted.

    The second part is empty where no such word stands.
    """
    found = _WANTED.search(message)
    return (message, "") if found is None else (message[: found.start()], message[found.start() :])


def unclear(refusal: Refusal) -> list[str]:
    """What keeps a reader from understanding a refusal, one line per fault; empty for a clear one."""
    message = refusal.message
    got, wanted = parts(message)
    sentence = re.sub(r"\n  .*", "", message)  # a list of indented lines may follow it, and come between
    faults = {
        "nothing was refused": not refusal.exception,
        f"{len(sentence)} characters": not SHORTEST <= len(sentence) <= LONGEST,
        "more than one paragraph": bool(re.search(r"^(?!  ).*\n(?!  |.*:$)", message.strip(), re.MULTILINE)),
        "a message of another library": " raised " not in message and any(text in message for text in _TORCH),
        "what was got is not named": not (_QUOTED.search(got) or _KIND.search(message)),
        "what was wanted is not named": len(wanted) < 8,
        "a path of this machine": bool(
            re.search(r"(?<![\w.])/(home|tmp|usr|root|work|private|var)/", message)
        ),
    }
    return [text for text, found in faults.items() if found]
