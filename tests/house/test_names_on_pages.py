"""Pages, README and docstrings name what exists; what is public at the top is used on a page."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

import kl_companion
from tests.support.layout import BOOK, PACKAGE
from tests.support.page_imports import PAGES, ROOT, imported

SOURCES = sorted([*PACKAGE.rglob("*.py"), *BOOK.rglob("*.py")])
TEXTS = [*PAGES, *SOURCES, *sorted((ROOT / "tables").glob("*/manifest.yml"))]
MOST = 50  # public names at the top


def exists(dotted: str) -> bool:
    """Whether a dotted name leads to a module of the package, or to a name in one."""
    path = (BOOK.parent if dotted.startswith("kl_book") else ROOT).joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():  # its libraries need not be installed
        return True
    try:
        resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def missing(text: str) -> list[str]:
    """Dotted names and paths of the package that a text names and that do not exist."""
    names = {n for n in re.findall(r"\bkl_(?:companion|book)(?:\.\w+)+", text) if not n.endswith(".py")}
    paths = {p.rstrip(".") for p in re.findall(r"(?:\bkl_companion|\bbook/kl_book)/[\w/.]+", text)}
    return sorted({n for n in names if not exists(n)} | {p for p in paths if not (ROOT / p).exists()})


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_text_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    to_write = set(re.findall(r":caption: ([\w/.]+)", text))  # files that the page has its reader write
    assert set(missing(text)) <= to_write


def test_what_does_not_exist_is_found() -> None:
    text = "`kl_companion.attic.k3`, kl_companion.ops.logs, kl_companion/attic.py; kl_companion.audit is one."
    assert missing(text) == ["kl_companion.attic.k3", "kl_companion.ops.logs", "kl_companion/attic.py"]
    assert missing("kl_book.attic, book/kl_book/attic.py, kl_book.tables") == [
        "book/kl_book/attic.py",
        "kl_book.attic",
    ]
    assert missing("kl_companion.theory.calculus.value in kl_companion/theory/calculus.py.") == []


def test_what_a_page_imports_exists() -> None:
    gone = [f"{pages}: {module}.{name}" for (module, name), pages in imported().items()
            if not exists(f"{module}.{name}")]  # fmt: skip
    assert gone == []


def test_a_public_name_is_used_on_a_page() -> None:
    used = {name for module, name in imported() if module == PACKAGE.name}
    assert len(kl_companion.__all__) <= MOST
    assert set(kl_companion.__all__) - used == set(), "no page imports it: leave it to its room"
