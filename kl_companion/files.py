"""Where the book's sources are, and how a file is written: completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT_VARIABLE = "KL_COMPANION_ROOT"


def find_root() -> Path | None:
    """The folder of the book's sources; None outside them.

    It is the nearest folder, from the working directory upwards, that holds `_toc.yml` and `tables/`. The
    environment variable `KL_COMPANION_ROOT`, if set, is taken instead, where it names a folder
    with `tables/`.
    """
    given, here = os.environ.get(ROOT_VARIABLE), Path.cwd().resolve()
    if given:
        return Path(given).resolve() if (Path(given) / "tables").is_dir() else None
    for folder in (here, *here.parents):
        if (folder / "_toc.yml").is_file() and (folder / "tables").is_dir():
            return folder
    return None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all: beside its place first, then moved there.

    Args:
        path: the file; its folder is made where it is missing.
        content: a text is written as UTF-8, with its line ends as they are.
    """
    write_together({path: content}, path.parent)


def write_together(contents: Mapping[Path, str | bytes], staging: Path) -> None:
    """Write files completely or not at all: none is moved to its place before all are written.

    A process that is killed leaves at most files `*.part` in the folder ``staging``.

    Args:
        contents: the files and what goes into each, as in `write_atomically`.
        staging: a folder of the same file system, where they are written first.
    """
    parts = {path: staging / f".{path.name}.{os.getpid()}.part" for path in contents}
    for folder in {staging, *(path.parent for path in contents)}:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for path, part in parts.items():
            content = contents[path]
            part.write_bytes(content.encode() if isinstance(content, str) else content)
        for path, part in parts.items():
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
