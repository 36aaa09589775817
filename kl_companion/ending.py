"""A guard against code of the user's that ends the process with a status of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


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

    setattr(os, "_exit", raise_instead)  # noqa: B010 (a function, to a type checker)
    try:
        yield
    finally:
        setattr(os, "_exit", leave)  # noqa: B010
