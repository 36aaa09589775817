"""The map of the house: rooms import rooms of lower floors only, oracles share no code, files stay short."""

import ast
import json
import os
import subprocess
import sys

import pytest

import kl_companion
from kl_companion.lazy import public_names
from tests.support import layout

PUBLIC = public_names((layout.PACKAGE / "__init__.py").read_text())
ORACLES = layout.TESTS / "oracles"
LONGEST = 400

WHEEL = {
    "checks": 0,
    "eval_mode": 0,
    "host_reads": 0,
    "keywords": 0,
    "files": 0,
    "lazy": 0,
    "ending": 0,
    "ops": 0,
    "student_t": 0,
    "divergences": 1,
    "plotting": 1,
    "recommendations": 1,
    "estimators": 2,
    "kernels": 3,
    "rollout": 3,
    "theory": 3,
    "kl_term": 4,
    "losses": 4,
    "policy_losses": 4,
    "tabular": 4,
    "token_terms": 4,
    "auditing": 5,
    "testing": 6,
    "frameworks": 6,
    "monitor": 7,
    "llm": 8,
    "cli": 9,
}
# The book's own package, which no wheel holds: it stands on all of the other, and nothing there knows it.
BOOK = {
    "file_lock": 0,
    "names": 0,
    "example": 0,
    "coins": 0,
    "words": 0,
    "tables": 0,
    "lab": 1,
    "paste": 1,
    "explorer": 1,
    "faults": 1,
    "mutants": 1,
    "gradient_paths": 1,
    "moving": 1,
    "long_answers": 1,
    "run_shapes": 1,
    "simplex": 1,
    "speed_goals": 1,
    "framework_table": 1,
    "film": 2,
    "front": 2,
    "ledger": 2,
    "speed_tables": 2,
    "cli": 3,
    "__main__": 4,
}
FLOORS = {"kl_companion": WHEEL, "kl_book": BOOK}
# What the other rooms of their floor hold.
SHARED = ("checks", "host_reads", "kl_term", "file_lock")
HEAVY = ("torch", "sympy", "matplotlib", "numpy", "pandas")


def room_of(module):
    """The room of a dotted module name of the package; None for the package itself."""
    return module.split(".")[1] if "." in module else None


def imported(source, module, is_package):
    """Dotted names of the two packages' modules that a source imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*here[: len(here) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                # a public name, a module of a package, or a name inside a module
                if base == "kl_companion" and alias.name in PUBLIC:
                    names.add(PUBLIC[alias.name])
                else:
                    names.add(f"{base}.{alias.name}" if base in FLOORS else base)
    return {n for n in names if n.split(".")[0] in FLOORS}


def package_sources():
    """{dotted name: (source, whether it is a package)} of every module."""
    files = {layout.dotted(name): path for name, path in layout.modules().items()}
    return {name: (path.read_text(), path.name == "__init__.py") for name, path in files.items()}


def violations(sources):
    """One line for every import that does not go down."""
    lines = []
    for module, (source, is_package) in sources.items():
        package, room = module.split(".")[:2]
        floors = FLOORS[package]
        if room not in floors:
            lines.append(f"{module} is in the room {room!r}, which has no floor yet: give it one in FLOORS")
            continue
        for target in sorted(imported(source, module, is_package)):
            other = room_of(target)
            if other == room or other is None or other == "__version__":
                continue
            theirs = target.split(".")[0]
            if other not in FLOORS[theirs]:
                lines.append(f"{module} imports {target}, which is no room of the map")
            elif theirs != package:
                if package == "kl_companion":
                    lines.append(f"{module} imports {target}, which no wheel holds")
            elif floors[other] > floors[room]:
                lines.append(f"{module} (floor {floors[room]}) imports {target} (floor {floors[other]})")
            elif floors[other] == floors[room] and other not in SHARED:
                lines.append(f"{module} imports {target}, another room of floor {floors[room]}")
    return lines


def test_rooms_import_lower_floors_only():
    assert violations(package_sources()) == []


def test_every_module_is_seen():
    seen = package_sources()
    for module in ("ops", "estimators.sampled", "theory.calculus", "auditing.auditor", "cli"):
        assert f"kl_companion.{module}" in seen
    assert "kl_book.tables" in seen
    assert set(PUBLIC.values()) <= set(seen)
    for package, floors in FLOORS.items():
        assert {room_of(m) for m in seen if m.startswith(f"{package}.")} == set(floors)


@pytest.mark.parametrize(
    ("module", "source", "wanted"),
    [
        ("ops", "import kl_companion.divergences", "(floor 0) imports kl_companion.divergences (floor 1)"),
        ("rollout", "from kl_companion.theory import calculus", "another room of floor 3"),
        ("theory.calculus", "from ..rollout import Rollout", "another room of floor 3"),
        (
            "losses",
            "def f():\n    from kl_companion import bandit",
            "imports kl_companion.tabular.worlds, another room",
        ),
        ("tabular", "from kl_companion import losses", "another room of floor 4"),
        ("kl_term", "from kl_companion.losses import kl_loss", "another room of floor 4"),
        (
            "estimators",
            "from kl_companion.estimators import sampled\nfrom kl_companion import audit",
            "(floor 5)",
        ),
        ("divergences", "from . import estimators", "(floor 1) imports kl_companion.estimators (floor 2)"),
        ("attic", "import math", "'attic', which has no floor yet"),
        ("cli", "from kl_companion.cellar import wine", "no room of the map"),
        (
            "cli.audit",
            "def f():\n    from kl_book import tables",
            "imports kl_book.tables, which no wheel holds",
        ),
    ],
)
def test_an_import_that_goes_up_is_found(module, source, wanted):
    (line,) = violations({f"kl_companion.{module}": (source, module == "estimators")})
    assert wanted in line


def test_imports_that_go_down_or_stay_in_the_room_are_fine():
    fine = {
        "kl_companion.auditing.auditor": (
            "from kl_companion.auditing.fit.least_squares import curl\nimport os",
            False,
        ),
        "kl_companion.cli": ("from kl_companion import k3, audit, __version__", False),
        "kl_companion.ops": ("from kl_companion.checks import unknown_name", False),
        "kl_book.tables": ("from .store import load\nfrom . import rows", True),
        "kl_book.tables.store": ("from . import rows\nfrom .project import names", False),
    }
    assert violations(fine) == []


def test_oracles_share_no_code():
    files = sorted(ORACLES.glob("*.py"))
    assert files
    for path in files:
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add("." * node.level + (node.module or "").split(".")[0])
            elif isinstance(node, ast.Name):
                assert node.id not in ("__import__", "exec", "eval"), path.name
        allowed = {"torch", "math", "itertools", "mpmath", "collections", "__future__"}
        assert found <= allowed, f"{path.name} imports {sorted(found)}"


def test_importing_the_package_is_light():
    code = f"import json, sys, kl_companion; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    environment = {**os.environ, "PYTHONPATH": str(layout.ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    assert json.loads(done.stdout) == []


def test_every_public_name_is_where_the_list_says():
    for name, module in PUBLIC.items():
        value = getattr(kl_companion, name)
        assert value is getattr(sys.modules[module], name)
    assert set(PUBLIC) <= set(dir(kl_companion))
    assert set(kl_companion.__all__) == set(PUBLIC)
    with pytest.raises(AttributeError, match="module 'kl_companion' has no attribute 'k33'"):
        _ = kl_companion.k33


def test_no_file_is_too_long_to_read_in_one_sitting():
    files = [*layout.PACKAGE.rglob("*.py"), *layout.BOOK.rglob("*.py")]
    lengths = {str(p.relative_to(layout.ROOT)): len(p.read_text().splitlines()) for p in files}
    assert lengths
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
