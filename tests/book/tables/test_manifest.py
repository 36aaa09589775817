"""Manifests: what is wrong is said before anything runs, with the nearest right name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.tables.manifest import manifest_digest, points, read_manifest, settings
from tests.support.data import data

DATA = data(__file__)
Edit = Callable[[str, str, str], None]
FILE, NOTEBOOK = "tables/toy/manifest.yml", "book/experiments/toy.ipynb"


def test_profiles_override_grid_and_parameters(project: Path) -> None:
    manifest = read_manifest("toy")
    assert settings(manifest, "cpu") == ({"method": ["b", "a"], "seed": [0, 1]}, {"scale": 2.0})
    assert settings(manifest, "smoke") == ({"method": ["b", "a"], "seed": [0]}, {"scale": 0.5})
    assert points({"a": [1, 2], "b": [3, 4]}) == [
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    ]
    assert points({}) == [{}]


@pytest.mark.parametrize(("old", "new", "message"), DATA["manifests"])
def test_a_wrong_manifest_is_refused_before_anything_runs(
    project: Path, edit: Edit, quick: list[dict[str, Any]], old: str, new: str, message: str
) -> None:
    edit(FILE, old, new)
    with pytest.raises(ValueError, match=message) as caught:
        tables.run("toy")
    assert "tables/toy/manifest.yml" in str(caught.value)
    assert not quick
    assert not (project / "_build").exists()


@pytest.mark.parametrize("name", ["../toy", "toy/../../secret", ".", "", "/etc", "toy/"])
def test_a_name_that_is_a_path_is_no_table(project: Path, quick: list[dict[str, Any]], name: str) -> None:
    (project / "secret").mkdir()
    for folder in (project / "secret", project / "tables"):
        (folder / "manifest.yml").write_text((project / FILE).read_text())
    for use in (tables.run, tables.load, tables.check, read_manifest):
        with pytest.raises(ValueError, match="unknown table"):
            use(name)
    assert not quick
    assert not (project / "_build").exists()


@pytest.mark.parametrize("path", ["/etc/toy.ipynb", "book/../../toy.ipynb", "book/experiments/linked.ipynb"])
def test_a_notebook_stands_in_the_project(
    project: Path, edit: Edit, quick: list[dict[str, Any]], tmp_path: Path, path: str
) -> None:
    (tmp_path / "toy.ipynb").write_text((project / NOTEBOOK).read_text())
    (project / "book/experiments/linked.ipynb").symlink_to(tmp_path / "toy.ipynb")
    edit(FILE, NOTEBOOK, path)
    with pytest.raises(ValueError, match="below the project root"):
        tables.run("toy")
    assert not quick


def test_a_table_is_written_into_its_folder_only(
    project: Path, quick: list[dict[str, Any]], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (project / "tables/toy").rename(elsewhere)
    (project / "tables/toy").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"tables/toy is a link to .*elsewhere, expected"):
        tables.run("toy")
    assert not quick
    assert [path.name for path in elsewhere.iterdir()] == ["manifest.yml"]


def test_a_table_that_is_a_link_is_replaced_and_not_followed(
    project: Path, quick: list[dict[str, Any]], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.csv"
    kept.write_text("mine\n")
    for name in ("table.csv", "provenance.json"):
        (project / "tables/toy" / name).symlink_to(kept)
    tables.run("toy")
    assert kept.read_text() == "mine\n"
    assert not (project / "tables/toy/table.csv").is_symlink()
    assert quick


@pytest.mark.parametrize(("old", "new", "message"), DATA["notebooks"])
def test_a_wrong_notebook_is_refused(project: Path, edit: Edit, old: str, new: str, message: str) -> None:
    edit(NOTEBOOK, old, new)
    with pytest.raises(ValueError, match=message):
        read_manifest("toy")


@pytest.mark.parametrize(("old", "new", "changes"), DATA["digests"])
def test_the_digest_is_of_what_decides_the_table(
    project: Path, edit: Edit, old: str, new: str, changes: bool
) -> None:
    before = manifest_digest(read_manifest("toy"), "cpu")
    edit(FILE, old, new)
    assert (manifest_digest(read_manifest("toy"), "cpu") != before) == changes


TINY = "like: toy\ntitle: Another\ngrid: {method: [a]}\n"


def second(project: Path, text: str) -> None:
    (project / "tables/second").mkdir()
    (project / "tables/second/manifest.yml").write_text(text)


def test_a_table_like_another_is_as_if_it_were_written_out(project: Path, toy: dict[str, Any]) -> None:
    second(project, TINY + "columns: {method: str, seed: int, step: int}\nneeds: smollm2\nminutes: 6\n")
    found = read_manifest("second")
    assert (found.title, found.grid, found.parameters, found.profiles) == (
        "Another",
        {"method": ["a"]},
        {},
        {},
    )
    assert [column.name for column in found.columns] == ["method", "seed", "step"]
    assert (found.key, found.cost, found.deterministic) == (("method", "seed", "step"), "seconds", True)
    assert (found.needs, found.minutes, found.like) == ("smollm2", 6.0, "toy")
    written = toy["manifest"].replace("A toy", "Another").replace("[b, a], seed: [0, 1]", "[a]")
    written = written.replace("parameters: {scale: 2.0}\n", "")
    written = "\n".join(line for line in written.splitlines() if not line.startswith("profiles"))
    (project / "tables/second/manifest.yml").write_text(TINY)
    like = manifest_digest(read_manifest("second"), "cpu")
    (project / "tables/second/manifest.yml").write_text(written)
    assert read_manifest("second").like is None
    assert manifest_digest(read_manifest("second"), "cpu") == like


def test_what_a_table_needs_and_takes_is_never_that_of_another(project: Path, edit: Edit) -> None:
    edit(FILE, "title: A toy", "needs: smollm2\nminutes: 6\ntitle: A toy")
    second(project, TINY)
    assert read_manifest("toy").minutes == 6.0
    assert (read_manifest("second").needs, read_manifest("second").minutes) == (None, None)


@pytest.mark.parametrize(("text", "message"), DATA["second"])
def test_a_wrong_second_manifest_is_refused(project: Path, text: str, message: str) -> None:
    second(project, text)
    with pytest.raises(ValueError, match=message):
        read_manifest("second")
