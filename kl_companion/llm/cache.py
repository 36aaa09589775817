"""A cache of folders: each is made once, and found again by a digest of its recipe.

A folder appears under its final name only when it is whole, so a process that is killed half-way leaves
nothing that a later one would take for the result. Every file is stored with its digest, which is read again
each time: a damaged file is noticed and the entry is made anew. What takes long is made in parts, and then a
later process goes on where a killed one stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kl_companion.file_lock import exclusive_lock
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


def cached(
    recipe: dict[str, Any],
    make: Callable[[Path], None],
    *,
    resume: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> Path:
    """The folder that `make` fills, made once for each recipe.

    Two processes that want the same folder at once both make it; the first to finish wins and both get whole
    files. A damaged entry is repaired file by file, so that nobody who reads it meanwhile loses a file.

    Args:
        recipe: all that the content depends on, as JSON; the folder is named by its SHA-256.
        make: fills the empty folder that it is given. It must write the same files each time.
        resume: for what takes long. One process makes the folder, the others wait for it; what `make` wrote
            with `part` before it was interrupted is found again for a day.
        waiting: called once when another process makes the folder (with ``resume`` alone).

    Returns:
        The folder. Beside what `make` wrote it holds `content.json`: the recipe and every file's digest.

    Raises:
        ValueError: the recipe is not JSON.
        OSError: the folder cannot be written; nothing is left behind but, with ``resume``, finished parts.
    """
    target = cache_folder() / recipe_digest(recipe)
    if whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    if resume:
        with exclusive_lock(target.with_name(f".{target.name}.lock"), waiting):
            if not whole(target):
                _resumed(recipe, make, target)
        return target
    made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))
    try:
        made.chmod(0o755)  # mkdtemp keeps others out; a finished entry may be shared
        _fill(made, recipe, make, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def part(folder: Path, name: str, write: Callable[[Path], None]) -> None:
    """Write a file of an unfinished folder, unless it is there as an interrupted process wrote it.

    Args:
        folder: what `cached` gave to `make`.
        name: of the file.
        write: writes it at the path that it is given; it is moved to its place when it is whole.
    """
    files = _files(folder) or {}
    if _is(folder / name, files.get(name)):
        return
    beside = folder / f".{name}.part"
    try:
        write(beside)
        digest = _digest(beside)
        beside.replace(folder / name)
    finally:
        beside.unlink(missing_ok=True)
    _note(folder, {"files": {**files, name: digest}})


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
    files = _files(folder)
    return files is not None and all(_is(folder / name, digest) for name, digest in files.items())


def _resumed(recipe: dict[str, Any], make: Callable[[Path], None], target: Path) -> None:
    """Make an entry in a folder that stays when that fails, with the parts that are finished."""
    made = target.with_name(f"{_UNFINISHED}{target.name}")
    made.mkdir(exist_ok=True)
    os.utime(made)  # it has an owner again
    for half in made.glob(".*.part"):
        half.unlink()
    try:
        _fill(made, recipe, make, target)
        shutil.rmtree(made, ignore_errors=True)
    finally:
        with suppress(OSError):  # holds parts, or has become the entry
            made.rmdir()


def _fill(made: Path, recipe: dict[str, Any], make: Callable[[Path], None], target: Path) -> None:
    make(made)
    _note(made, {"recipe": recipe, "files": _digests(made)})
    _publish(made, target)


def _note(folder: Path, content: dict[str, Any]) -> None:
    write_atomically(folder / CONTENT, json.dumps(content, indent=1, sort_keys=True) + "\n")


def _files(folder: Path) -> dict[str, Any] | None:
    """The files that a folder noted, with their digests; None where there is no note, or a damaged one."""
    try:
        files = json.loads((folder / CONTENT).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if isinstance(files, dict) else None


def _is(path: Path, digest: Any) -> bool:
    """Whether a file is there with that digest."""
    try:
        return digest is not None and _digest(path) == digest
    except OSError:
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
