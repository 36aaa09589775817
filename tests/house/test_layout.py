"""Nobody has to guess where a test is: the tests mirror the package, and never import from one another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import run
from tests.support import layout
from tests.support.data import data

DATA = data(__file__)


CLAIMS = "book.ledger.claims."  # their checks are tests already: the ledger runs every one of them
SHORT = 60  # lines of a module that needs no test file


def test_every_test_file_is_about_a_module() -> None:
    lost = [file.as_posix() for file in layout.files() if layout.subject(file) is None]
    assert lost == [], "no module begins the name of these; move them, or into one of the general folders"


def test_every_module_has_a_test_of_its_own_or_of_the_neighbor_that_is_made_of_it() -> None:
    without = [
        module
        for module, path in layout.modules().items()
        if path.name != "__init__.py"
        and not module.startswith(CLAIMS)
        and len(path.read_text(encoding="utf-8").splitlines()) > SHORT
        and module not in layout.covered()
    ]
    assert without == []


@pytest.mark.parametrize(("file", "subject"), DATA["a_file_belongs_to_the_longest_name"])
def test_a_file_belongs_to_the_longest_name(file: str, subject: str | None) -> None:
    assert layout.subject(Path(file)) == subject


def test_a_module_is_asked_by_its_own_tests_first_and_then_by_its_users() -> None:
    found = layout.stages("estimators.sampled")
    assert found[:2] == ("tests/estimators/test_sampled.py", "tests/estimators/test_sampled_forms.py")
    assert "tests/theory/test_calculus.py" in found
    assert found.index("tests/theory/test_calculus.py") < found.index("tests/numerics/test_samples.py")


def imports_of_tests(source: str) -> list[str]:
    """Names of test files that a source imports from."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("tests")]
    return [name for name in found if any(part.startswith("test_") for part in name.split(".")[:-1])] + [
        name for name in found if name.rpartition(".")[2].startswith("test_")
    ]


def test_an_import_from_a_test_file_is_found() -> None:
    assert imports_of_tests("from tests.a.test_b import c\nfrom tests.support import d") == [
        "tests.a.test_b.c"
    ]
    assert imports_of_tests("def f():\n    from tests.a import test_b") == ["tests.a.test_b"]


OF_TESTS = "tests/reliability/"  # they run the tests themselves, on mutants of the package


def test_no_file_imports_from_a_test_file() -> None:
    files = {path.relative_to(layout.ROOT).as_posix(): path for path in layout.TESTS.rglob("*.py")}
    found = {
        name: imports_of_tests(path.read_text(encoding="utf-8"))
        for name, path in files.items()
        if not name.startswith(OF_TESTS)
    }
    assert {name: imported for name, imported in found.items() if imported} == {}


def test_the_groups_name_what_there_is_and_fit_into_twelve_minutes() -> None:
    paths = [path for group in run.GROUPS.values() for path in [*group.paths, *run.OWN_GROUP]]
    assert [path for path in paths if not (layout.ROOT / path).exists()] == []
    budgets = {name: group.budget for name, group in run.GROUPS.items()}
    assert budgets.pop("quick") <= 1.5
    assert sum(budgets.values()) <= 12
