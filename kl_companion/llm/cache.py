"""A cache of folders: each is made once, and found again by a digest of its recipe.

A folder appears under its final name only when it is whole, so a process that is killed half-way leaves
nothing that a later one would take for the result. Every file is stored with its digest, which is read again
each time: a damaged file is noticed and the entry is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kl_companion.files import find_root, write_atomically

CACHE_VARIABLE = "KL_COMPANION_CACHE"
CONTENT = "content.json"
_UNFINISHED = ".unfinished-"
_STALE = 24 * 3600.0  # seconds after which an unfinished folder belongs to nobody


def cache_folder() -> Path:
    """Where models that were trained on the spot are kept.

    The environment variable `KL_COMPANION_CACHE`; without it `_build/models` of the book's sources, if the
    working directory lies inside them (or `KL_COMPANION_ROOT` names them); else `~/.cache/kl_companion`.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser().resolve()
    root = find_root()
    return Path.home() / ".cache" / "kl_companion" if root is None else root / "_build" / "models"


def cached(recipe: dict[str, Any], make: Callable[[Path], None]) -> Path:
    """Return the folder that `make` fills, made once for each recipe.

    Two processes that want the same folder at once both make it; the first to finish wins and both get whole
    files. A damaged entry is repaired file by file, so that nobody who reads it meanwhile loses a file.

    Args:
        recipe: all that the content depends on, as JSON; the folder is named by its SHA-256.
        make: fills the empty folder that it is given. It must write the same files each time.

    Returns:
        The folder. Beside what `make` wrote it holds `content.json`: the recipe and every file's digest.

    Raises:
        ValueError: the recipe is not JSON.
        OSError: the folder cannot be written; nothing is left behind.
    """
    target = cache_folder() / recipe_digest(recipe)
    if whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))
    try:
        made.chmod(0o755)  # mkdtemp keeps others out; a finished entry may be shared
        make(made)
        content = {"recipe": recipe, "files": _digests(made)}
        write_atomically(made / CONTENT, json.dumps(content, indent=1, sort_keys=True) + "\n")
        _publish(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def recipe_digest(recipe: dict[str, Any]) -> str:
    """The SHA-256 of a recipe's sorted JSON, in hexadecimal.

    Raises:
        ValueError: the recipe is not JSON.
    """
    try:
        text = json.dumps(recipe, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a recipe must be JSON, so that it can name a folder: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()


def whole(folder: Path) -> bool:
    """Whether a cache entry is there with every file as it was written."""
    try:
        files = json.loads((folder / CONTENT).read_text(encoding="utf-8"))["files"]
        return all(_digest(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no list of digests, or a damaged one
        return False


def _publish(made: Path, target: Path) -> None:
    try:
        made.rename(target)
        return
    except OSError:
        if not target.is_dir():
            raise
    if whole(target):  # another process was faster
        return
    # the list of digests goes last: until it is there the entry counts as damaged
    for name in [*_digests(made), CONTENT]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).replace(target / name)


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    for path in folder.glob("*.unfinished-*"):  # one more dot before what `save_model` has half-written
        try:
            if time.time() - path.stat().st_mtime > _STALE:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:  # its owner has just finished
            continue


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CONTENT)
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
