"""Where a table comes from: code, settings, versions and machine, and what has changed since.

Three digests decide whether a table is still the one that its sources describe: of the manifest, of the
notebook's code, and of the table itself. A fourth, of the package files that the notebook uses (syntax trees
without docstrings), tells whether the code below has drifted.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from kl_book.tables import closure
from kl_book.tables.manifest import (
    ON_GPU,
    Manifest,
    code_cells,
    manifest_digest,
    notebook_digest,
    settings,
)

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("torch", "numpy", "sympy", "pandas")
FIELDS = (
    "commit", "device", "digests", "dirty", "grid", "package_files", "parameters", "points", "profile",
    "start", "versions", "wall_seconds",
)  # fmt: skip


def package_files(notebook: Path) -> dict[str, str]:
    """The package files that a notebook uses, each with its digest."""
    source = "\n\n".join(source for source, _ in code_cells(notebook))
    files = closure.module_files(PACKAGE_ROOT, closure.strip_magics(source))
    return closure.file_digests(PACKAGE_ROOT, files, docstrings=False)


def package_digest(files: dict[str, str]) -> str:
    """One sha256 over what `package_files` gave."""
    return text_digest("".join(f"{path}={digest}\n" for path, digest in files.items()))


def digests(manifest: Manifest, profile: str) -> dict[str, str]:
    """The digests of a table's sources: manifest, notebook, package."""
    return {
        "manifest": manifest_digest(manifest, profile),
        "notebook": notebook_digest(manifest.notebook),
        "package": package_digest(package_files(manifest.notebook)),
    }


@lru_cache(maxsize=1)
def versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that numbers depend on; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def gpu_name() -> str | None:
    """The name of the first CUDA device, None where there is none."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def processor_name() -> str:
    """The processor's model, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit, and whether anything but tables differs from it; (None, None) outside a git repository."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    # tables are products: making one after the other must not call the second one dirty
    products = [":(exclude)tables/*.csv", ":(exclude)tables/*.json"]
    changes = _git(root, "status", "--porcelain", "--", ".", *products)
    return commit, bool(changes)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def begin(manifest: Manifest, profile: str) -> dict[str, Any]:
    """All about a run that is known when it begins, before an edit could be taken for its source."""
    grid, parameters = settings(manifest, profile)
    commit, dirty = git_state(manifest.root)
    return {
        "commit": commit,
        "device": {"gpu": gpu_name() if profile in ON_GPU else None, "processor": processor_name()},
        "digests": digests(manifest, profile),
        "dirty": dirty,
        "grid": grid,
        "package_files": package_files(manifest.notebook),
        "parameters": parameters,
        "profile": profile,
        "start": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": versions(),
    }


def finish(
    record: dict[str, Any], *, table: str, seconds: float, resumed: int, taken: Sequence[float | None]
) -> dict[str, Any]:
    """What `begin` gave, completed for the provenance file.

    Args:
        record: what `begin` gave.
        table: the text of the table.
        seconds: wall time of the run.
        resumed: number of points that an earlier run had finished.
        taken: seconds that each point took, whichever run finished it; None where that is not known.
    """
    known = [x for x in taken if x is not None]
    points = {
        "resumed": resumed,
        "total": len(taken),
        "seconds": round(sum(known), 1) if len(known) == len(taken) else None,
    }
    return {
        **record,
        "digests": {**record["digests"], "table": text_digest(table)},
        "points": points,
        "wall_seconds": round(seconds, 1),
    }


def text_digest(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
