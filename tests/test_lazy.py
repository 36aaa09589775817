"""Lazy packages list their names where they are defined; looking a name up loads it, nothing else does."""

import ast
import json
import os
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kl_companion
from kl_book.tables.closure import lazy_names
from kl_companion.lazy import lazy, public_names
from tests.support.warm import command

PACKAGE = Path(kl_companion.__file__).resolve().parent
INITS = {
    ".".join(path.parent.relative_to(PACKAGE.parent).parts): path for path in PACKAGE.rglob("__init__.py")
}
EAGER = ("kl_book.ledger.claims.", "kl_companion.cli")  # a source registers its checks, a command runs
LAZY = {package: names for package, path in INITS.items() if (names := lazy_names(path))}


def run(code: str) -> list[Any]:
    """What a process of its own prints as JSON."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [*command(), "-c", code], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_name_is_loaded_when_it_is_used() -> None:
    get, names, listed = lazy("kl_companion")
    assert names == kl_companion.__all__
    vars(kl_companion).pop("k3", None)
    assert get("k3") is import_module("kl_companion.estimators.sampled").k3
    assert vars(kl_companion)["k3"] is get("k3")  # a plain attribute from then on
    assert {"k3", "__version__"} <= set(listed())
    with pytest.raises(AttributeError, match="module 'kl_companion' has no attribute 'k33'"):
        get("k33")


def test_every_package_is_lazy_or_holds_no_code() -> None:
    for package, path in INITS.items():
        if package not in LAZY and not package.startswith(EAGER):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert [type(node) for node in body] in ([], [ast.Expr]), f"{package} runs code when imported"


@pytest.mark.parametrize("package", sorted(LAZY))
def test_a_package_lists_its_names_where_they_are(package: str) -> None:
    modules = {path.stem for path in INITS[package].parent.glob("*.py")}
    modules |= {path.parent.name for path in INITS[package].parent.glob("*/__init__.py")}
    assert set(LAZY[package]) & modules == set(), "importing the module would hide the name"
    room = import_module(package)
    assert room.__all__ == list(LAZY[package])
    assert set(LAZY[package]) <= set(dir(room))
    for name, module in LAZY[package].items():
        assert module.startswith(f"{package}.")
        assert module not in INITS, f"{name} is to be taken from the module that defines it"
        assert getattr(room, name) is vars(import_module(module))[name]


@pytest.mark.parametrize("package", sorted(LAZY))
def test_what_is_read_without_a_syntax_tree_is_what_a_checker_of_types_sees(package: str) -> None:
    source = INITS[package].read_text(encoding="utf-8")
    assert public_names(source) == LAZY[package]
    assert source.endswith("__getattr__, __all__, __dir__ = lazy(__name__)\n")


def test_a_package_without_its_source_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(kl_companion.__spec__.loader), "get_source", lambda *_: None)
    monkeypatch.setattr(kl_companion, "__file__", "/nowhere/__init__.pyc")
    with pytest.raises(ImportError, match="kl_companion was installed without its source"):
        lazy("kl_companion")


def test_importing_rooms_loads_nothing_behind_them() -> None:
    rooms = [package for package in INITS if not package.startswith(EAGER)]
    code = "import sys, json\n" + "\n".join(f"import {room}" for room in rooms)
    code += "\nprint(json.dumps(sorted(n for n in sys.modules if n.startswith('kl_companion'))))"
    assert run(code) == sorted({*rooms, "kl_companion.lazy"})


LOADED = "sorted(n for n in sys.modules if n.startswith('kl_companion'))"
FRESH = f"""
import json, sys
from kl_companion import audit, ESTIMATORS
ESTIMATORS
simplified = "sympy.physics" in sys.modules  # `simplify` loads it
audit("k3")
loaded, first = {LOADED}, list(ESTIMATORS)
for name in loaded:
    del sys.modules[name]
from kl_companion import exact_kl
exact_kl
from kl_companion import ESTIMATORS
print(json.dumps([loaded, first, list(ESTIMATORS), simplified]))
"""


@pytest.fixture(scope="module")
def fresh() -> list[Any]:
    """In a new process: what an audit loads, the registry after it, that after another first import; and
    whether the import simplified an expression.
    """
    return run(FRESH)


def test_an_audit_loads_nothing_of_the_book(fresh: list[Any]) -> None:
    assert "kl_companion.auditing.auditor" in fresh[0]
    rooms = {name.split(".")[1] for name in fresh[0] if "." in name}
    assert not rooms & {"book", "cli", "llm", "frameworks", "plotting"}


def test_the_registry_is_read_without_simplifying(fresh: list[Any]) -> None:
    assert fresh[3] is False


def test_the_registry_is_full_and_in_one_order_whatever_was_imported_first(fresh: list[Any]) -> None:
    _, after_audit, after_exact, _ = fresh
    assert {"k1", "exact_kl", "k_lambda(0.5)", "top_k_reverse_kl(32)"} <= set(after_audit)
    assert after_exact == after_audit
