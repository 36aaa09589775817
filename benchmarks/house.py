"""How heavy is the house? Files that a chapter reaches, public names, lines of every room.

    .venv/bin/python -m benchmarks.house [CHECKOUT]

Another checkout (an older one, say) is measured with its own closure: the files that a change of which would
execute the chapter again. How long the tests take is printed by `make test` and `make quick` themselves.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from kl_companion.lazy import public_names as names_in

HERE = Path(__file__).resolve().parents[1]


def closure_of(root: Path) -> ModuleType:
    """The module that follows imports, of this checkout, loaded by its path.

    Raises:
        ValueError: the folder holds no checkout of the book.
    """
    file = root / "book/kl_book/tables/closure.py"
    if not file.is_file():
        raise ValueError(f"{file} does not exist, expected a checkout of the book")
    spec = importlib.util.spec_from_file_location("house_closure", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(paths: Iterable[Path]) -> int:
    """Lines of some Python files."""
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in paths if p.suffix == ".py")


def reached(root: Path) -> dict[str, tuple[int, int]]:
    """Of every chapter, how many modules of the package it reaches, and their lines."""
    closure = closure_of(root)
    found = {}
    for path in sorted((root / "book").glob("part*/*.ipynb")):
        code = closure.notebook_code(path.read_text(encoding="utf-8"))
        files = [p for p in closure.module_files(root, code) if p.suffix == ".py"]
        found[path.relative_to(root / "book").with_suffix("").as_posix()] = (len(files), lines(files))
    return found


def rooms(root: Path) -> dict[str, tuple[int, int]]:
    """Files and lines of every room of both packages, and of the folders beside them."""
    found = {}
    for package, prefix in ((root / "kl_companion", ""), (root / "book/kl_book", "kl_book/")):
        for top in sorted(package.iterdir()):
            found[prefix + top.name] = counted(top)
    beside = ("book/_ext", "tests", "benchmarks")
    found |= {name: counted(root / name) for name in beside}
    return {name: size for name, size in found.items() if size[1]}


def counted(top: Path) -> tuple[int, int]:
    """Number of Python files, and their lines, in a folder; or of one file."""
    files = [top] if top.suffix == ".py" else sorted(top.rglob("*.py"))
    return len(files), lines(files)


def public_names(root: Path) -> int:
    """Names that `import kl_companion` offers beside its rooms."""
    return len(names_in((root / "kl_companion" / "__init__.py").read_text(encoding="utf-8")))


def main(arguments: list[str]) -> int:
    """Print the three tables."""
    root = Path(arguments[0]).resolve() if arguments else HERE
    chapters = reached(root)
    counts, sizes = zip(*chapters.values(), strict=True)
    print(f"{'chapter':<64}{'files':>7}{'lines':>8}")
    for name, (count, size) in chapters.items():
        print(f"{name:<64}{count:>7}{size:>8}")
    middle = f"median of {len(chapters)}"
    print(f"{middle:<64}{statistics.median(counts):>7.0f}{statistics.median(sizes):>8.0f}")
    print(f"\n{public_names(root)} public names\n\n{'room':<32}{'files':>7}{'lines':>8}")
    for name, (count, size) in rooms(root).items():
        print(f"{name:<32}{count:>7}{size:>8}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
