"""A change in a module executes exactly the chapters that use it: the cache against what is really loaded."""

from __future__ import annotations

import ast
import json
import os
import shutil
import statistics
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kl_book.tables import closure
from tests.support.layout import PATH
from tests.support.warm import command

ROOT = Path(closure.__file__).resolve().parents[3]
CHAPTERS = {
    path.relative_to(ROOT / "book").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "book").glob("part*/*.ipynb"))
}
MOST = 48  # files of the package that half of the chapters reach at most
TOUCHED = tuple(
    f"kl_companion/{name}.py"
    for name in ("auditing/auditor", "kernels/linear", "tabular/anchors", "theory/transforms")
)


@cache
def reached() -> dict[str, set[str]]:
    """The modules of the package that each chapter reaches, by the book's own cache."""
    found = {}
    for name, text in CHAPTERS.items():
        files = closure.module_files(ROOT, closure.notebook_code(text))
        found[name] = {p.relative_to(ROOT).as_posix() for p in files if p.suffix == ".py"}
    return found


@pytest.fixture(scope="module")
def loaded() -> dict[str, tuple[set[str], set[str]]]:
    """Of each chapter, the files that its imports load, and those that its functions may load besides."""
    codes = {name: closure.notebook_code(text) for name, text in CHAPTERS.items()}
    done = subprocess.run(
        [*command(), ROOT / "tests/support/loading.py"],
        input=json.dumps(codes),
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, list[list[str]]] = json.loads(done.stdout)
    return {name: (files(found[0]), files(found[1])) for name, found in answer.items()}


def files(modules: list[str]) -> set[str]:
    """Files of modules, but for packages without code: their names count with the modules behind them."""
    above = {"kl_companion": ROOT, "kl_book": ROOT / "book"}
    paths = [above[module.partition(".")[0]] / Path(*module.split(".")) for module in modules]
    found = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    own = [p for p in found if p.name != "__init__.py" or has_code(p.read_text(encoding="utf-8"))]
    return {p.relative_to(ROOT).as_posix() for p in own} | {"kl_companion/__init__.py"}


def has_code(text: str) -> bool:
    """Whether an `__init__.py` does more than to describe its package and to list names."""
    return "lazy(__name__)" not in text and [type(n) for n in ast.parse(text).body] != [ast.Expr]


def test_half_of_the_chapters_reach_few_files() -> None:
    counts = {name: len(modules) for name, modules in reached().items()}
    assert len(counts) == 30
    assert statistics.median(counts.values()) <= MOST, counts


def test_a_chapter_reaches_what_it_loads_and_nothing_that_it_cannot_load(
    loaded: dict[str, tuple[set[str], set[str]]],
) -> None:
    for name, modules in reached().items():
        imported, reachable = loaded[name]
        assert imported <= modules, f"{name} loads what the cache does not see"
        assert modules <= reachable, f"{name} cannot load what the cache counts"


def test_a_change_makes_exactly_the_chapters_outdated_that_load_the_module(
    loaded: dict[str, tuple[set[str], set[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("kl_companion", "book/kl_book", "tables"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    monkeypatch.syspath_prepend(str(ROOT / "book/_ext"))
    import kl_cache

    def digests(cache: Any) -> dict[str, str]:
        return {name: cache.digest(text) for name, text in CHAPTERS.items()}

    monkeypatch.setattr(kl_cache, "ROOT", tmp_path)
    kl_cache.closure.cache_clear()
    before = digests(kl_cache)
    for name in TOUCHED:
        path = tmp_path / name
        source = path.read_text(encoding="utf-8")
        path.write_text(f"{source}\nTOUCHED = True\n", encoding="utf-8")
        outdated = {chapter for chapter, digest in digests(kl_cache).items() if digest != before[chapter]}
        path.write_text(source, encoding="utf-8")
        must = {chapter for chapter, (imported, _) in loaded.items() if name in imported}
        may = {chapter for chapter, (_, reachable) in loaded.items() if name in reachable}
        assert must, f"no chapter loads {name}: touch another module"
        assert must <= outdated <= may
        assert outdated != set(CHAPTERS), f"every chapter loads {name}: touch another module"
    kl_cache.closure.cache_clear()
