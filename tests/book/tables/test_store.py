"""Finding the project and loading a table."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kl_book import tables

Edit = Callable[[str, str, str], None]


def test_load_has_the_types_of_the_manifest(project: Path, toy: dict[str, Any]) -> None:
    (project / "tables/toy/table.csv").write_text(toy["table"])
    frame = tables.load("toy")
    want = {
        "method": "str",
        "seed": "int64",
        "step": "int64",
        "value": "float64",
        "tiny": "float64",
        "good": "bool",
    }
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == want
    assert frame["value"].tolist() == [0.0, 0.667, 0.667, 1.333, 0.0, -0.667, -0.667, -1.333]
    assert frame["method"].tolist() == ["b"] * 4 + ["a"] * 4


def test_load_keeps_gaps_and_words_that_look_like_gaps(project: Path, edit: Edit) -> None:
    for name, kind in [("step", "int"), ("good", "bool")]:
        edit("tables/toy/manifest.yml", f"{name}: {kind}", f"{name}: {{type: {kind}, missing: true}}")
    edit("tables/toy/manifest.yml", "key: [method, seed, step]", "key: [method, seed]")
    (project / "tables/toy/table.csv").write_text("method,seed,step,value,tiny,good\nNA,0,,0.000,0.00,\n")
    frame = tables.load("toy")
    assert frame["method"].tolist() == ["NA"]
    assert str(frame["step"].dtype) == "Int64"
    assert frame["step"][0] is pd.NA
    assert str(frame["good"].dtype) == "boolean"


def test_load_names_the_command_that_makes_a_missing_table(project: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Make it: python -m kl_book table run toy$"):
        tables.load("toy")
    with pytest.raises(
        FileNotFoundError, match=r"table.gpu.csv .* Make it: python -m kl_book table run toy --profile gpu$"
    ):
        tables.load("toy", profile="gpu")


def test_unknown_names_are_refused_with_the_nearest(project: Path) -> None:
    for function in (tables.load, tables.run, tables.check, tables.drift):
        with pytest.raises(ValueError, match=r"unknown table 'toi'. Did you mean 'toy'\? Known: toy"):
            function("toi")
    for function in (tables.load, lambda name, profile: tables.run(name, profile=profile)):
        with pytest.raises(ValueError, match=r"unknown profile 'gpuu'. Did you mean 'gpu'"):
            function("toy", "gpuu")


def test_a_malformed_table_is_not_loaded(project: Path) -> None:
    (project / "tables/toy/table.csv").write_text("method\nb\n")
    with pytest.raises(ValueError, match=r"table.csv: the columns are \['method'\]"):
        tables.load("toy")


def test_names_are_the_folders_with_a_manifest(project: Path) -> None:
    (project / "tables/notes").mkdir()
    (project / "tables/notes/manifest.md").touch()
    (project / "tables/toy/table.csv").touch()
    assert tables.names() == ["toy"]


def test_the_root_is_above_or_named(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "book/experiments")
    assert tables.project_root() == project
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="or set KL_COMPANION_ROOT"):
        tables.project_root()
    monkeypatch.setenv("KL_COMPANION_ROOT", str(project))
    assert tables.project_root() == project
    monkeypatch.setenv("KL_COMPANION_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="holds no folder tables/"):
        tables.project_root()


def test_loading_needs_no_runner_and_importing_needs_nothing(project: Path, toy: dict[str, Any]) -> None:
    (project / "tables/toy/table.csv").write_text(toy["table"])
    code = """
import sys
from kl_book import tables
tables.write_rows(None, [{"a": 1}])
heavy = {"papermill", "joblib", "matplotlib", "pandas", "yaml", "torch", "sympy"}
print(sorted(heavy & set(sys.modules)))
tables.load("toy")
print(sorted(heavy & set(sys.modules)))
"""
    root = str(Path(tables.__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{root!r}, {root!r} + '/..']\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['pandas', 'yaml']"]


@pytest.mark.parametrize("module", ["papermill", "joblib", "yaml"])
def test_a_missing_library_names_the_extra(
    project: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"need {module}, .* pip install -e book"):
        tables.run("toy")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        tables.lode  # noqa: B018
