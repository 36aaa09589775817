"""`benchmarks/house.py` counts what it says, in a small house built for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import house
from kl_book.tables import closure

INIT = '''"""A package."""
if TYPE_CHECKING:
    from kl_companion.core import one as one
    from kl_companion.core import two as two
__getattr__, __all__, __dir__ = lazy(__name__)
'''


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A package of five files, of which the only chapter reaches one."""
    written = {
        "kl_companion/__init__.py": INIT,
        "kl_companion/core.py": "one = 1\ntwo = 2\n",
        "kl_companion/unused.py": "three = 3\n",
        "book/kl_book/__init__.py": "",
        "book/kl_book/tables/__init__.py": "",
        "tests/test_core.py": "\n\n\n",
    }
    for name, text in written.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(closure.__file__, tmp_path / "book/kl_book/tables/closure.py")
    cell = {"cell_type": "code", "source": "from kl_companion.core import one", "metadata": {}}
    chapter = tmp_path / "book" / "part1_basics" / "01_first.ipynb"
    chapter.parent.mkdir(parents=True)
    chapter.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return tmp_path


def test_files_names_and_lines(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.reached(small) == {"part1_basics/01_first": (1, 2)}
    assert house.public_names(small) == 2
    rooms = house.rooms(small)
    assert (rooms["core.py"], rooms["tests"]) == ((1, 2), (1, 3))
    assert rooms["kl_book/tables"][0] == 2
    assert house.main([str(small)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "median of 1 1 2" in printed
    assert "2 public names" in printed


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "kl_companion").mkdir()
    with pytest.raises(ValueError, match=r"closure.py does not exist, expected a checkout of the book"):
        house.reached(tmp_path)
