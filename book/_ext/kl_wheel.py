"""The wheel of `kl_companion` in the built pages, so that a reader can install the package from the site.

It is built offline, by the setuptools of the environment that builds the book, from a temporary copy of the
sources, and laid into ``_packages`` of the built pages. The same sources give the same bytes, and are built
once.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "_packages"
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")  # read by the build, beside the package
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
MOMENT = "1767225600"  # of every file, 2026-01-01 UTC: the time of a build is no part of the package
# the back-end that pyproject.toml names, asked as pip asks it
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def copy_of_sources(root: Path, folder: Path, *others: str) -> Path:
    """Copy the files that a build of the package reads: a build leaves folders beside its sources.

    Args:
        root: The folder of the project.
        folder: The copy, which does not exist yet.
        others: More folders of the project to copy.
    """
    folder.mkdir(parents=True)
    for name in BESIDE:
        shutil.copy(root / name, folder / name)
    for name in ("kl_companion", *others):
        shutil.copytree(root / name, folder / name, ignore=IGNORED)
    return folder


def digest(root: Path) -> str:
    """Return 16 hexadecimal digits for the sources and the version of setuptools."""
    total = hashlib.sha256(metadata.version("setuptools").encode())
    inside = (path for path in (root / "kl_companion").rglob("*") if "__pycache__" not in path.parts)
    for path in [*(root / name for name in BESIDE), *sorted(path for path in inside if path.is_file())]:
        total.update(f"\n{path.relative_to(root).as_posix()}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def build(root: Path, folder: Path) -> Path:
    """Build the wheel.

    Args:
        root: The folder of the project.
        folder: An empty folder for the wheel.

    Raises:
        RuntimeError: setuptools failed; the message has its last lines.
    """
    with tempfile.TemporaryDirectory() as name:
        sources = copy_of_sources(root, Path(name) / "sources")
        for path in sources.rglob("*"):  # a wheel records permissions
            path.chmod(0o755 if path.is_dir() else 0o644)
        command = [sys.executable, "-c", BUILD, str(folder.resolve())]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": MOMENT}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            command, cwd=sources, env=environment, umask=0o022, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the wheel was not built: {''.join(done.stderr.splitlines(True)[-5:])}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def cached(cache: Path, root: Path = ROOT) -> Path:
    """Return the wheel of the sources as they are, built only when they changed.

    Args:
        cache: The folder that keeps the last wheel that was built.
        root: The folder of the project.
    """
    target = cache / digest(root)
    if not target.is_dir():
        shutil.rmtree(cache, ignore_errors=True)
        unfinished = cache / "part"
        unfinished.mkdir(parents=True)
        build(root, unfinished)
        os.replace(unfinished, target)
    (wheel,) = target.glob("*.whl")
    return wheel


def lay_wheel(app: Any) -> None:
    """Lay the wheel into the built pages, and note its name for those that show how to install it."""
    if app.builder.format != "html":
        return
    wheel = cached(Path(app.outdir).parent / "wheel")
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name != wheel.name:
            old.unlink()
    target = folder / wheel.name
    if not (target.is_file() and filecmp.cmp(wheel, target, shallow=False)):
        shutil.copyfile(wheel, target)
    app.env.kl_wheel_changed = getattr(app.env, "kl_wheel", None) != wheel.name
    app.env.kl_wheel = wheel.name
