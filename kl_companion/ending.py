"""Guards against code of the user's: it ends the process, never ends, asks a terminal, or prints."""

from __future__ import annotations

import io
import linecache
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_TICK = 0.25  # seconds between two looks at what runs
_PATIENCE = 8  # looks after the limit, at which code that catches everything is ended with the process
_MOST_LINES = 20  # that the user's code prints


@contextmanager
def no_exit() -> Iterator[None]:
    """Let ``os._exit`` raise SystemExit inside: a status of 0 would pass for a verdict.

    Children that are forked inside, as multiprocessing does, end as always.
    """
    process, leave = os.getpid(), os._exit

    def raise_instead(status: int) -> NoReturn:
        if os.getpid() != process:
            leave(status)
        raise SystemExit(status)

    setattr(raise_instead, "leave", leave)  # noqa: B010 (a function, to a type checker)
    setattr(os, "_exit", raise_instead)  # noqa: B010
    try:
        yield
    finally:
        setattr(os, "_exit", leave)  # noqa: B010


class TimedOut(BaseException):
    """The user's code ran for too long; no ``except Exception`` of theirs stops it."""


@contextmanager
def time_limit(seconds: float, file: str) -> Iterator[None]:
    """Raise `TimedOut` inside once the functions of a file have run for so long, all calls together.

    What runs is looked at four times a second, so that the time of the audit itself does not count. Where
    there is no SIGALRM, or outside the main thread, the process ends with status 2 instead.

    Args:
        seconds: The limit.
        file: Whose functions are meant, as they are called or call others.
    """
    home = os.path.realpath(file) if Path(file).exists() else file
    looks = 0

    def over(frame: FrameType | None) -> str:
        """A sentence on where it runs, once it has run too long."""
        nonlocal looks
        while frame is not None and frame.f_code.co_filename not in (home, file):
            frame = frame.f_back
        looks += frame is not None
        if frame is None or looks * _TICK < seconds:
            return ""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        return (
            f"{file} has run for {seconds:g} s, at last at line {frame.f_lineno}: {line}; expected a loss "
            "that returns at once (--timeout SECONDS waits longer)"
        )

    def end(message: str) -> None:
        print(f"kl-companion: {message}", file=sys.stderr, flush=True)
        getattr(os._exit, "leave", os._exit)(2)

    def look(_: int, frame: FrameType | None) -> None:
        if message := over(frame):
            if looks * _TICK > seconds + _PATIENCE * _TICK:
                end(message)
            raise TimedOut(message)

    if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return
    done, ident = threading.Event(), threading.get_ident()

    def watch() -> None:
        while not done.wait(_TICK):
            if message := over(sys._current_frames().get(ident)):
                end(message)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


class _FirstLines(io.TextIOBase):
    """A stream to stderr for the first lines that are printed."""

    def __init__(self) -> None:
        self._lines = 0

    def write(self, text: str) -> int:
        """Pass on what is among the first lines, and say once that there is more."""
        if self._lines < _MOST_LINES:
            sys.stderr.write(text if len(text) < 1000 else f"{text[:1000]} ...\n")
            self._lines += text.count("\n")
            if self._lines >= _MOST_LINES:
                sys.stderr.write("  (what the file prints from here on is left out)\n")
        return len(text)


class _NobodyTypes(io.TextIOBase):
    """A standard input that nobody answers."""

    def readline(self, *_: Any) -> Any:
        """Refuse."""
        raise EOFError("the file asks for something to be typed, expected code that runs without questions")

    read = readline


def _breaks(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("breakpoint() was reached, expected a loss without one")


@contextmanager
def alone() -> Iterator[None]:
    """Inside, what is printed goes to stderr, and what asks a terminal raises.

    What programs and libraries write to the standard output itself goes to stderr too.
    """
    stdin, hook, saved = sys.stdin, sys.breakpointhook, None
    with suppress(OSError, ValueError, AttributeError):
        if sys.stdout.fileno() == 1:
            sys.stdout.flush()
            saved = os.dup(1)
            os.dup2(2, 1)
    sys.stdin, sys.breakpointhook = _NobodyTypes(), _breaks
    try:
        with redirect_stdout(_FirstLines()):
            yield
    finally:
        sys.stdin, sys.breakpointhook = stdin, hook
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)
