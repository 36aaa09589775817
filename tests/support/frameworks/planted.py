"""Small releases in older layouts, written below a folder: see ``planted.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from kl_companion.frameworks.installed import Distribution

RELEASES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def files(release: str) -> dict[str, str]:
    """Texts of a release by file, those of the one that it is like among them."""
    entry = RELEASES[release]
    before = files(entry["like"]) if "like" in entry else {}
    return {n: x for n, x in {**before, **entry["files"]}.items() if n not in entry.get("without", ())}


def plant(folder: Path, release: str, **more: str) -> Distribution:
    """Write a release, ``"verl 0.1"``, and more files or others; one without an entry has no files."""
    distribution, version = release.split()
    for name, text in {**(files(release) if release in RELEASES else {}), **more}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return Distribution(distribution, version, folder)
