"""`make lock`: resolve pyproject.toml with every extra, and write requirements.lock.

    python -m tests.installing.lock            the newest versions that fit together
    python -m tests.installing.lock --check    change nothing: say what the lock has too much or too little

pip resolves, in a dry run that installs nothing; the lines at the top of the lock that begin with # stay.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
# what torch's build for CUDA brings: it depends on the index, so pip finds it by itself
OF_CUDA = re.compile(r"(nvidia|cuda)-.*|triton")


def wanted(root: Path = ROOT) -> list[str]:
    """What both packages and all their extras ask for, in the words of the two pyproject.toml."""
    found = []
    for file in ("pyproject.toml", "book/pyproject.toml"):
        project = tomllib.loads((root / file).read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].values()
        found += [*project["dependencies"], *(name for names in extras for name in names)]
    return [name for name in found if not name.startswith("kl-companion")]


def lines_of(report: dict) -> list[str]:
    """The lines of a lock, from what `pip install --report` writes, in the packages' own spelling."""
    found = {}
    for item in report["install"]:
        name, version = item["metadata"]["name"], Version(item["metadata"]["version"])
        if not OF_CUDA.fullmatch(canonicalize_name(name)):
            found[name] = version.public  # no build tag: torch's CPU build satisfies it too
    return [f"{name}=={found[name]}" for name in sorted(found, key=str.lower)]


def resolve(asked: Iterable[str], constraints: Path | None = None) -> list[str]:
    """What pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        limits = ["--constraint", str(constraints)] if constraints else []
        subprocess.run([*pip, "--report", str(report), *limits, *asked], check=True)
        return lines_of(json.loads(report.read_text(encoding="utf-8")))


def header(text: str) -> list[str]:
    """The comment at the top of a lock."""
    lines = text.splitlines()
    return lines[: next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))]


def pins(text: str) -> list[str]:
    """The lines of a lock that are no comment."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def changes(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """What is added, removed and moved to another version, a line each."""
    old, new = (dict(line.split("==") for line in lines) for lines in (before, after))
    named = sorted({*old, *new}, key=str.lower)
    return [
        f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in named if old.get(n) != new.get(n)
    ]


def main(arguments: list[str]) -> int:
    """Write the lock, or check it; 1 when a check found a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.installing.lock", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="keep the versions, write nothing")
    check = parser.parse_args(arguments).check
    text = LOCK.read_text(encoding="utf-8")
    found = resolve(wanted(), LOCK if check else None)
    said = changes(pins(text), found)
    print("\n".join(said) or "requirements.lock is what pip resolves")
    if check:
        return int(bool(said))
    LOCK.write_text("\n".join([*header(text), *found]) + "\n", encoding="utf-8")
    if said:
        print(f"{len(said)} changes written. make test installs them and says whether they work together.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
