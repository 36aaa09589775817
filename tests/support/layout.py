"""Where a test belongs: that of ``kl_companion/a/b.py`` is ``tests/a/test_b.py``, or ``test_b_<what>.py``.

That of ``book/kl_book/a/b.py`` is ``tests/book/a/test_b.py``: its module is called ``book.a.b`` here.

A test of a room as a whole has the room's name: ``tests/frameworks/test_frameworks.py``. The folders of
`GENERAL` are about no module: built pages, sources of pages, the house itself, and what is shared.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

from kl_companion.lazy import public_names as names_in

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{ROOT}{os.pathsep}{ROOT / 'book'}"  # where both packages are found, as PYTHONPATH
PACKAGE, BOOK, TESTS = ROOT / "kl_companion", ROOT / "book" / "kl_book", ROOT / "tests"
GENERAL = frozenset(
    "house installing notebooks numerics oracles pages refusals reliability site support".split()  # noqa: SIM905
)


@cache
def modules() -> dict[str, Path]:
    """Every module of both packages, ``estimators.sampled``, and every room, ``estimators``: its file."""
    found = {}
    for package, above in ((PACKAGE, ()), (BOOK, ("book",))):
        for path in sorted(package.rglob("*.py")):
            parts = (*above, *path.relative_to(package).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name not in ("", "book")}


def dotted(module: str) -> str:
    """The name that imports a module of `modules`."""
    top, _, rest = module.partition(".")
    return f"{BOOK.name}.{rest}" if top == "book" else f"{PACKAGE.name}.{module}"


@cache
def files() -> tuple[Path, ...]:
    """Every test file that is about a module, relative to the root."""
    found = (path.relative_to(ROOT) for path in sorted(TESTS.rglob("test_*.py")))
    return tuple(path for path in found if path.parts[1] not in GENERAL)


def subject(file: Path) -> str | None:
    """The module or room that a test file is about, the longest name that its own begins with; or None."""
    folder, about = file.parts[1:-1], file.stem.removeprefix("test_")
    words = about.split("_")
    for end in range(len(words), 0, -1):
        name = "_".join(words[:end])
        if (module := ".".join([*folder, name])) in modules():
            return module
        if folder and name == folder[-1]:
            return ".".join(folder)
    return None


@cache
def tests_of(module: str) -> tuple[str, ...]:
    """The test files that are about a module, the one of exactly its name first."""
    mine = [file for file in files() if subject(file) == module]
    return tuple(file.as_posix() for file in sorted(mine, key=lambda file: (len(file.stem), file.stem)))


@cache
def public_names(package: str) -> dict[str, str]:
    """The table of names in a package's ``__init__``, name -> module; read, not imported."""
    above = ROOT / "book" if package.partition(".")[0] == BOOK.name else ROOT
    path = above / package.replace(".", "/") / "__init__.py"
    return names_in(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def names(path: Path) -> frozenset[str]:
    """The modules of the package that a file imports or runs; a public name counts as its module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                public = public_names(node.module).get(alias.name)
                found |= {public} if public else {node.module, f"{node.module}.{alias.name}"}
        elif isinstance(node, ast.Constant) and str(node.value).startswith(
            (f"{PACKAGE.name}.", f"{BOOK.name}.")
        ):
            found.add(str(node.value))  # in a command: python -m
    return frozenset(module for module in modules() if dotted(module) in found)


def room(module: str) -> str:
    """The folder of a module, by its dotted name; empty for one that lies at the top."""
    return module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]


@cache
def covered() -> frozenset[str]:
    """Modules with a test: of their own, of their room, beside it, or of a neighbor that is made of them."""
    beside = {(".".join(f.parts[1:-1]), m) for f in files() for m in names(ROOT / f)}
    seen = {
        m for m in modules() if tests_of(m) or (room(m) and (tests_of(room(m)) or (room(m), m) in beside))
    }
    ahead = set(seen)
    while ahead:
        used = {(m, other) for m in ahead for other in names(modules()[m])}
        ahead = {other for m, other in used if room(m) == room(other)} - seen
        seen |= ahead
    return frozenset(seen)


# Tests of what is far above the core would notice too, in minutes.
FAR = ("book", "llm", "frameworks", "recommendations")
# what everything public answers to bad input and at the edges of what it takes, and the command line
DOORS = ("refusals", "numerics", "cli")


@cache
def stages(module: str) -> tuple[str, ...]:
    """Test files that are asked about a module, the sharpest first.

    Its own come first, then those of its room, those that import it or its room by name, those of the modules
    that import it, and the doors.
    """
    near = [f for f in files() if f.parts[1] not in FAR]

    def sorted_by_use(some: list[Path]) -> list[str]:
        return [f.as_posix() for f in sorted(some, key=lambda f: (module not in names(ROOT / f), f))]

    made_of_it = [m for m in modules() if module in names(modules()[m]) and m.split(".")[0] not in FAR]
    theirs = [file for m in made_of_it if room(m) == room(module) for file in tests_of(m)]
    beside = [f for f in near if ".".join(f.parts[1:-1]) == room(module) and room(module)]
    users = [f for f in near if names(ROOT / f) & {module, room(module)}]
    doors = [p.relative_to(ROOT) for door in DOORS for p in sorted((TESTS / door).glob("test_*.py"))]
    further = [file for m in made_of_it for file in tests_of(m)]
    found = (
        *(tests_of(module) or theirs),  # a part of neighbors has theirs
        *sorted_by_use(beside),
        *sorted_by_use(users),
        *further,
        *(f.as_posix() for f in doors),
    )
    return tuple(dict.fromkeys(found))
