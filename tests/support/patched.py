"""Printed patches, applied to files as `patch` would apply them: line by line, and exactly."""

from __future__ import annotations

import re
from pathlib import Path


def patched(texts: dict[str, str], file: str, remedy: str) -> dict[str, str]:
    """The texts of files with a patch applied, where its lines are closest together.

    Args:
        texts: By the name of the file.
        file: The one that the patch is of, but where it names another.
        remedy: What an audit has printed.

    Raises:
        LookupError: a line that goes, or stays, is not there after the lines before it.
    """
    texts = dict(texts)
    hunks: dict[str, list[str]] = {}
    for line in remedy.splitlines():
        other = re.fullmatch(r"# in (\S+):", line)
        if other:
            file = other.group(1)
        elif not line.startswith("# ") or line in texts[file].splitlines():
            hunks.setdefault(file, []).append(line)
    for name, hunk in hunks.items():
        lines = texts[name].splitlines(keepends=True)
        plain = [x.rstrip("\r\n") for x in lines]
        old = [x.removeprefix("- ") for x in hunk if not x.startswith("+ ")]
        found = [
            places
            for i, x in enumerate(plain)
            if x == old[0] and (places := _places(plain, old, i)) is not None
        ]
        if not found:
            raise LookupError(f"{old} are not in {name} in this order")
        places = min(found, key=lambda at: at[-1] - at[0])
        end = "\r\n" if "\r\n" in texts[name] else "\n"
        gone, come, at = set(), {}, places[0]
        for line in hunk:
            if line.startswith("+ "):
                come.setdefault(at, []).append(line[2:] + end)
                continue
            if line.startswith("- "):
                gone.add(places[0])
            at = places.pop(0) + 1
        kept = [[*come.get(i, []), *([x] if i not in gone else [])] for i, x in enumerate([*lines, ""])]
        texts[name] = "".join(x for parts in kept for x in parts)
    return texts


def _places(lines: list[str], old: list[str], first: int) -> list[int] | None:
    """Where each line is, the first at a place; None where one is not after the one before it."""
    places = []
    for line in old:
        if line not in lines[first:]:
            return None
        first = lines.index(line, first) + 1
        places.append(first - 1)
    return places


def written(folder: Path, texts: dict[str, str]) -> None:
    """Write files as they are, line ends included."""
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
