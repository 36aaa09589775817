"""Where the project is, which tables it has, and what is missing to work on them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from kl_companion.files import ROOT_VARIABLE, find_root


def project_root() -> Path:
    """The folder of the book's sources, as `kl_companion.files.find_root` finds it.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if (root := find_root()) is not None:
        return root
    if given := os.environ.get(ROOT_VARIABLE):
        raise FileNotFoundError(f"{ROOT_VARIABLE} is {given!r}, which holds no folder tables/, expected one")
    raise FileNotFoundError(
        f"no folder with _toc.yml and tables/ at or above {Path.cwd().resolve()}, expected one: "
        f"work inside the book's sources, or set {ROOT_VARIABLE} to their folder"
    )


def names() -> list[str]:
    """The names of the project's tables, sorted: the folders of `tables/` that hold a `manifest.yml`."""
    return sorted(path.parent.name for path in (project_root() / "tables").glob("*/manifest.yml"))


def known_table(name: str) -> str:
    """Return `name` if the project has such a table, else raise the ValueError that lists those it has."""
    if name not in names():
        raise unknown("table", name, names())
    return name


def unknown(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for an unknown name. It is imported late: loading a good table needs no torch."""
    from kl_companion.checks import unknown_name

    return unknown_name(kind, name, known)


def book_extra(module: str) -> Any:
    """Import a module that `book/pyproject.toml` names.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        message = f"result tables need {module}, which is not installed: pip install -e book"
        raise ImportError(message, name=module) from None
