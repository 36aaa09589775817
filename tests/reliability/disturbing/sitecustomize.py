"""Every Python process that finds this file is killed at its n-th write, or finds a full disk from then on.

Python imports it by its name at the start. `KL_DISTURB` says what happens (`count`, `kill` or `full`), at
which write, and in which file the writes of all processes are counted, a byte each. A write is an opened
file, what goes into it, a move, a new folder, a removed file. Of what is to be written then, one half is.
"""

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any


def disturb(what: str, number: int, tally: str) -> None:
    """Count the writes of this process from now on, and let the n-th go wrong."""
    handle = os.open(tally, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    count, opened = os.write, builtins.open

    def due() -> bool:
        count(handle, b".")
        now = os.lseek(handle, 0, os.SEEK_CUR)
        return (what == "kill" and now == number) or (what == "full" and now >= number)

    def strike() -> None:
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Written(io.FileIO):
        def write(self, data: Any) -> int:
            if due():
                super().write(bytes(data)[: len(data) // 2])
                strike()
            return super().write(data)

    def open_(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if isinstance(file, int) or "+" in mode or not set(mode) & set("wxa") or buffering == 0:
            return opened(file, mode, buffering, *rest, **named)
        if due():
            strike()
        names = ("encoding", "errors", "newline", "closefd", "opener")
        given = {**dict(zip(names, rest, strict=False)), **named}
        raw = Written(file, mode.replace("t", ""), given.pop("closefd", True), given.pop("opener", None))
        if "b" in mode:
            return io.BufferedWriter(raw)
        text = io.TextIOWrapper(io.BufferedWriter(raw), **given, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    def wrapped(function: Callable[..., Any], *, frees: bool = False) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if due() and not (frees and what == "full"):
                strike()
            return function(*arguments, **named)

        return call

    builtins.open = io.open = open_  # type: ignore[assignment]
    os.replace, os.rename, os.mkdir = wrapped(os.replace), wrapped(os.rename), wrapped(os.mkdir)
    os.unlink, os.rmdir = wrapped(os.unlink, frees=True), wrapped(os.rmdir, frees=True)


if "KL_DISTURB" in os.environ:
    what, number, tally = os.environ["KL_DISTURB"].split(":")
    disturb(what, int(number), tally)
