"""What a process holds as long as it lives: a lock, a temporary folder.

Both rest on `flock`, which the system releases when a process ends, however it ends: nobody has to find out
whether the owner of what was left behind is still alive. Where there is no such lock (Windows, some network
drives) nothing is locked, and what a killed process has left stays.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Be the only one who holds a lock file.

    Args:
        path: the file; it is made where it is missing, and stays.
        waiting: called once if another process, or another thread, holds it and has to be waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if _locked(file.fileno()) is False:
            waiting()
            _locked(file.fileno(), wait=True)
        yield


@contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """A temporary folder with a short path; those that killed processes have left are removed before.

    Args:
        prefix: of its name, the same for all folders of this kind and for no other.
    """
    _sweep(prefix)
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    handle = None if sys.platform == "win32" else os.open(made, os.O_RDONLY)
    if handle is not None:
        _locked(handle)
    # under its own name only when it is locked: before, it would look like one that was left behind
    folder = made.rename(made.with_name(made.name[1:]))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _sweep(prefix: str) -> None:
    """Remove the folders whose owners are gone."""
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, or removed meanwhile
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _locked(handle):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _locked(handle: int, *, wait: bool = False) -> bool | None:
    """Whether an open file is now locked for its holder alone; None where that cannot be had."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
