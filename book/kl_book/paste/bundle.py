"""One archive of all that the page's Python needs: sources of both packages and what was recorded."""

from __future__ import annotations

import json
import zipfile
from importlib.metadata import version
from pathlib import Path

import kl_companion
from kl_book.paste.recorded import recorded
from kl_book.paste.start import RECORDS

PACKAGE, BOOK = Path(kl_companion.__file__).parent, Path(__file__).parents[1]
AUDITING = ("reading", "worlds", "fit", "judgment", "repair")
ROOMS = (
    "__init__.py",
    "auditing/*.py",
    *(f"auditing/{room}/*.{kind}" for room in AUDITING for kind in ("py", "toml")),
    "checks.py",
    "divergences/__init__.py",
    "divergences/inline.py",
    "estimators/*.py",
    "host_reads.py",
    "keywords.py",
    "kl_term.py",
    "lazy.py",
    "losses.py",
    "monitor/__init__.py",
    "monitor/largest_tokens.py",
    *(f"monitor/logs/*.{kind}" for kind in ("py", "toml", "csv")),
    "ops.py",
    "plotting.py",
    "recommendations/*.py",
    "recommendations/*.toml",
    "rollout/*.py",
    "tabular/*.py",
)
BOOK_ROOMS = (
    "__init__.py",
    "example.py",
    "paste/__init__.py",
    "paste/answer.py",
    "paste/cell_answer.py",
    "paste/divergences.py",
    "paste/log_answer.py",
    "paste/start.py",
    "paste/stand_in/*.py",
)
_MOMENT = (2026, 1, 1, 0, 0, 0)  # of every file: the same sources are the same bytes


def sources() -> list[Path]:
    """The files of both packages that the page needs."""
    rooms = [*((PACKAGE, pattern) for pattern in ROOMS), *((BOOK, pattern) for pattern in BOOK_ROOMS)]
    return sorted(path for package, pattern in rooms for path in package.glob(pattern))


def write_bundle(target: Path) -> None:
    """Write the archive, as a whole or not at all."""
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sources():
            package = PACKAGE if path.is_relative_to(PACKAGE) else BOOK
            name = path.relative_to(package.parent).as_posix()
            _add(archive, name, path.read_text(encoding="utf-8"))
        _add(archive, RECORDS, json.dumps(recorded()))
        _add(archive, f"kl_companion-{version('kl-companion')}.dist-info/METADATA", _metadata())
    part.replace(target)


def _metadata() -> str:
    return f"Metadata-Version: 2.1\nName: kl-companion\nVersion: {version('kl-companion')}\n"


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, _MOMENT), text, zipfile.ZIP_DEFLATED)
