"""The built pages as one file: `make zip` writes _build/kl-book.zip, the same bytes for the same pages."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOMENT = (2026, 1, 1, 0, 0, 0)  # of every file: when it was built is no part of what it says
FOLDER = "kl-book"  # where the pages lie once unpacked; its index.html is the first page
LEFT_OUT = {".buildinfo", "objects.inv"}


def write_zip(site: Path, target: Path) -> int:
    """Pack a folder of pages.

    Returns:
        The number of files.

    Raises:
        FileNotFoundError: the folder has no index.html.
    """
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"{site} has no index.html: run `make book` first")
    files = sorted(path for path in site.rglob("*") if path.is_file() and path.name not in LEFT_OUT)
    unfinished = target.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in files:
            entry = zipfile.ZipInfo(f"{FOLDER}/{path.relative_to(site).as_posix()}", MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            packed.writestr(entry, path.read_bytes())
    os.replace(unfinished, target)
    return len(files)


def main() -> int:
    """Pack the built book and say where it is."""
    target = ROOT / "_build" / "kl-book.zip"
    try:
        count = write_zip(ROOT / "_build" / "html", target)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    size = target.stat().st_size / 1e6
    print(
        f"==> {count} files in {target.relative_to(ROOT)} ({size:.1f} MB); unpack, open {FOLDER}/index.html"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
