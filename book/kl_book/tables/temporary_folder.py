"""Temporary folders that are removed even when their process was killed: the next one removes them.

A folder is locked as long as its process lives, so nobody has to find out whether the owner of what was left
behind is still alive. Where folders cannot be locked (Windows), what a killed process has left stays.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kl_book.file_lock import lock_descriptor


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder with a short path; those that killed processes have left are removed before.

    Args:
        prefix: of its name, the same for all folders of this kind and for no other.

    Raises:
        ImportError: what `book/pyproject.toml` names is not installed.
    """
    _remove_abandoned(prefix)
    hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    descriptor = None if sys.platform == "win32" else os.open(hidden, os.O_RDONLY)
    if descriptor is not None:
        lock_descriptor(descriptor)
    # it gets its own name only when it is locked: before, it would look like one that was left behind
    folder = hidden.rename(hidden.with_name(hidden.name[1:]))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _remove_abandoned(prefix: str) -> None:
    """Remove the folders whose processes have ended."""
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, or removed meanwhile
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if lock_descriptor(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
