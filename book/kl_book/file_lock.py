"""File locks, released by the operating system when their process ends, however it ends.

Where a file system has no such lock (some network drives) nothing is locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive_lock(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file that one thread of one process can hold at a time.

    Args:
        path: the file; it is made where it is missing, and stays.
        waiting: called once if another process, or another thread, holds it and has to be waited for.

    Raises:
        ImportError: filelock is not installed, or too old.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if lock_descriptor(file.fileno()) is False:
            waiting()
            lock_descriptor(file.fileno(), wait=True)
        yield


def lock_descriptor(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed.

    Returns:
        True when the lock is held, False when another has it, None where the file system has no locks.

    Raises:
        ImportError: filelock is not installed, or too old.
    """
    try:
        import filelock  # torch brings it, in any version

        lock = filelock.lock_descriptor
    except (ImportError, AttributeError):
        message = "locks need filelock from 3.30: pip install -e book"
        raise ImportError(message, name="filelock") from None
    try:
        return bool(lock(descriptor, blocking=wait))
    except OSError:
        return None
