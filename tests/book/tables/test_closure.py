"""What a text uses: read from the syntax tree of a toy package, without importing it."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kl_book.tables import closure
from tests.support.data import data

DATA = data(__file__)
TOY = DATA["toy"]
K3 = {"__init__.py", "estimators/__init__.py", "estimators/sampled.py", "ops.py"}
AUDIT = K3 | {"auditing/__init__.py", "auditing/audit.py"}
CLAIMS = {"__init__.py", "claims/__init__.py", "claims/ledger.py", "claims/register.csv"}
LAZY = AUDIT | {"plotting.py"}
SETS = {"K3": K3, "AUDIT": AUDIT, "CLAIMS": CLAIMS, "LAZY": LAZY, "EVERYTHING": set(TOY)}


def listed(**modules: str) -> str:
    """The names that a lazy package offers, as it writes them."""
    lines = (f"    from kl_companion.{module} import {name} as {name}\n" for name, module in modules.items())
    return "if TYPE_CHECKING:\n" + "".join(lines)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TOY.items():
        path = tmp_path / "kl_companion" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "kl_companionship.py").touch()
    return tmp_path


def used(root: Path, source: str, package: str = "") -> set[str]:
    files = closure.module_files(root, source, package)
    return {p.relative_to(root / "kl_companion").as_posix() for p in files}


@pytest.mark.parametrize(("source", "want"), DATA["uses"])
def test_a_text_uses_exactly(root: Path, source: str, want: str | list[str]) -> None:
    package = "kl_companion.auditing" if source.startswith("from .") else ""
    source = source.replace("from .", "from ..", 1) if package else source
    assert used(root, source, package) == (SETS[want] if isinstance(want, str) else set(want))


def test_a_lazy_package_below_the_root_is_followed_by_name(root: Path) -> None:
    init = root / "kl_companion/claims/__init__.py"
    init.write_text(listed(load="claims.ledger", draw="plotting"))
    assert used(root, "from kl_companion import claims\nclaims.load()") == CLAIMS
    plot = CLAIMS - {"claims/ledger.py"} | {"plotting.py"}
    assert used(root, "from kl_companion.claims import draw") == plot


def test_a_module_that_is_chosen_by_name_leads_to_all_that_could_be_chosen(root: Path) -> None:
    (root / "kl_companion" / "estimators" / "exact.py").write_text("from ..plotting import theme\nk4 = 4\n")
    source = 'from importlib import import_module\nimport_module(f"kl_companion.estimators.{name}").k4'
    here = {"__init__.py", "estimators/__init__.py", "estimators/exact.py", "plotting.py"}
    assert used(root, source) == here | used(root, "import kl_companion.estimators")


def digest(root: Path, docstrings: bool) -> str:
    files = closure.module_files(root, "from kl_companion import k3")
    return closure.files_digest(root, files, docstrings=docstrings)


@pytest.mark.parametrize(("name", "old", "new", "bytes_change", "tree_changes"), DATA["changes"])
def test_digest_sees_what_matters(
    root: Path, name: str, old: str, new: str, bytes_change: bool, tree_changes: bool
) -> None:
    path = root / "kl_companion" / name
    text = path.read_text()
    assert text.count(old) == 1
    before = digest(root, True), digest(root, False)
    path.write_text(text.replace(old, new))
    assert (digest(root, True) != before[0], digest(root, False) != before[1]) == (bytes_change, tree_changes)
    path.write_text(text)
    assert (digest(root, True), digest(root, False)) == before


def test_notebook_code_drops_prose_and_magics() -> None:
    cells = [
        '{"cell_type": "markdown", "source": ["from kl_companion import k3"]}',
        '{"cell_type": "code", "source": ["%matplotlib inline\\n", "x = 1"]}',
        '{"cell_type": "code", "source": "!ls\\ny = 7 % 2"}',
    ]
    notebook = f'{{"cells": [{", ".join(cells)}]}}'
    assert closure.notebook_code(notebook).split() == ["x", "=", "1", "y", "=", "7", "%", "2"]


def test_threads_parse_one_at_a_time() -> None:
    """A collection of garbage amid `ast.parse` lets another thread in, which confuses Python 3.11."""
    source = "\n".join(f"x{i} = {'[' * 40}{i}{']' * 40}" for i in range(40))
    threshold, yielding = gc.get_threshold(), lambda *_: time.sleep(0)
    gc.callbacks.append(yielding)
    gc.set_threshold(20)
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = [task.result() for task in [pool.submit(closure.parse, source) for _ in range(60)]]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(yielding)
    assert {len(tree.body) for tree in trees} == {40}


def test_a_table_of_names_counts_with_the_modules_it_leads_to(root: Path) -> None:
    init = root / "kl_companion/estimators/__init__.py"
    head = '"""Formulas."""\nfrom typing import TYPE_CHECKING\nfrom kl_companion.lazy import lazy\n'
    table = listed(k3="estimators.sampled")
    last = "__getattr__, __all__, __dir__ = lazy(__name__)\n"
    init.write_text(head + table + last)
    (root / "kl_companion/lazy.py").touch()
    files = K3 - {"estimators/__init__.py"} | {"lazy.py"}
    assert used(root, "from kl_companion.estimators import k3") == files
    before = digest(root, docstrings=True)
    more = listed(k3="estimators.sampled", k4="estimators.sampled")  # another name of a module that is used
    init.write_text(head + more + last)
    assert digest(root, docstrings=True) != before
    init.write_text(head + listed(k3="estimators.sampled", theme="plotting") + last)
    assert digest(root, docstrings=True) == before
    init.write_text(head + table + last + "print('more than a table')\n")
    assert used(root, "from kl_companion.estimators import k3") == files | {"estimators/__init__.py"}
    (root / "kl_companion/__init__.py").write_text(
        (root / "kl_companion/__init__.py").read_text().replace("estimators.sampled", "estimators")
    )
    init.write_text(head + table + last)
    assert used(root, "from kl_companion import k3") == files  # through one lazy package to the next
    (root / "kl_companion/claims/__init__.py").write_text('"""Words alone."""\n')
    assert used(root, "import kl_companion.claims.ledger") == CLAIMS - {"claims/__init__.py"}
