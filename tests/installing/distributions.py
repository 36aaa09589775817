"""The sdist and the wheel: how they are built, and what has to be in them and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.support.extensions import extension

wheels = extension("kl_wheel")
# the back-end that pyproject.toml names, asked as pip asks it, in the environment that the lock makes
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """The sdist of a project, and the wheel made from nothing but that sdist."""
    sources = wheels.copy_of_sources(root, folder / "sources", "tests", "book")  # two that are not packed
    _run([sys.executable, "-c", BUILD, str(folder)], sources)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--isolated", "wheel", "--quiet", "--no-index", "--no-deps"]
    _run([*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(sdist)], folder)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def _run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")


def files_of_package(root: Path) -> set[str]:
    """Every file of the package, data that it reads at run time included."""
    found = (path for path in (root / "kl_companion").rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}


def problems(root: Path, sdist: Path, wheel: Path) -> list[str]:
    """What is missing in the two files, and what does not belong there."""
    wanted = files_of_package(root)
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        entry = next((n for n in in_wheel if n.endswith("entry_points.txt")), None)
        scripts = archive.read(entry).decode() if entry else ""
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    said = [f"the wheel lacks {name}" for name in sorted(wanted - in_wheel)]
    if "kl-companion = kl_companion.cli:main" not in scripts:
        said.append("the wheel has no script kl-companion")
    information = {n for n in in_wheel if re.fullmatch(r"kl_companion-[\d.]+\.dist-info/.+", n)}
    if not any(name.endswith("licenses/LICENSE") for name in information):
        said.append("the wheel lacks the license")
    said += [f"the wheel holds {name}" for name in sorted(in_wheel - wanted - information)]
    said += [f"the sdist lacks {name}" for name in sorted((wanted | set(wheels.BESIDE)) - in_sdist)]
    allowed = wanted | set(wheels.BESIDE) | {"PKG-INFO", "setup.cfg"}
    extra = {name for name in in_sdist - allowed if not name.startswith("kl_companion.egg-info/")}
    return said + [f"the sdist holds {name}" for name in sorted(extra)]
