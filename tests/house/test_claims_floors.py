"""The three floors of the claims: ledger and ground, the checks of each section, the pages.

What checks share is in `ground`; a module that registers checks is imported by its source alone.
"""

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

from kl_book.ledger.claims import ledger
from kl_book.ledger.claims.checks import WORDS
from kl_book.ledger.claims.ledger import checks
from kl_book.ledger.claims.standard import SOURCES
from tests.support.warm import command

ROOM = "kl_book.ledger.claims"
FOLDER = Path(ledger.__file__).parent
# what a module of checks may import from the room, beside the ground
FOUNDATIONS = ("checks", "comparisons", "evidence", "rows", "standard", "ground")
BELOW = {f"{ROOM}.{name}" for name in FOUNDATIONS}


@cache
def modules():
    """{dotted name: (source, whether it is a package)} of the room."""
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join([ROOM, *(parts[:-1] if is_package else parts)])
        found[name] = (path.read_text(encoding="utf-8"), is_package)
    del found[ROOM]
    return found


def imported(source):
    """Dotted names of the room's modules that a source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports of this room are absolute"
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & set(modules())
            names |= inside or {node.module}
    return {name for name in names if name.startswith(f"{ROOM}.")}


def floor(name):
    """0 for the ground and what it stands on, 1 for the checks of a source, 2 for the pages."""
    if name in BELOW or name.startswith((f"{ROOM}.ground.", f"{ROOM}.rows.")):
        return 0
    return 1 if name.split(".")[3] in SOURCES else 2


def violations(sources):
    """One line for every import that leaves the floors."""
    lines = []
    for name, (source, is_package) in sources.items():
        for target in sorted(imported(source)):
            if is_package and target.startswith(name):
                continue
            if floor(target) > floor(name) or (floor(target) == floor(name) == 1):
                lines.append(f"{name} imports {target}")
    return lines


def test_checks_import_from_the_ground_alone():
    assert violations(modules()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("emapg2026.loop", "from kl_book.ledger.claims.emapg2026.weights import second"),
        ("emapg2026.loop", "from kl_book.ledger.claims.tang2025pitfalls import learning"),
        ("shah2025comedy", "from kl_book.ledger.claims import summary2025pitfalls"),
        ("ground.sums", "from kl_book.ledger.claims.emapg2026.weights import second"),
        ("ground.sums", "from kl_book.ledger.claims.page import anchor"),
        ("emapg2026.loop", "def f():\n    from kl_book.ledger.claims.listing import Ledger"),
    ],
)
def test_an_import_that_leaves_the_floors_is_found(name, source):
    assert len(violations({f"{ROOM}.{name}": (source, False)})) == 1


def test_checks_are_registered_on_their_floor():
    """By the modules of sources, and each of those registers checks or numbers for the words of rows."""
    registering = {c.generator.__module__ for c in checks().values()} | {f.__module__ for f in WORDS.values()}
    sections = {name for name, (_, is_package) in modules().items() if floor(name) == 1 and not is_package}
    assert {name for name in registering if floor(name) == 1} == sections
    assert {c.generator.__module__ for c in checks().values()} <= sections


def test_importing_the_ground_registers_nothing():
    names = ", ".join(sorted(name for name in modules() if floor(name) == 0))
    code = f"import {names}; print(len({ROOM}.checks.CLAIMS))"
    done = subprocess.run([*command(), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
