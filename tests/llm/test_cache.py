"""A cached folder is whole or not there: under a race, a kill, a full disk and damaged files."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kl_companion.llm.cache import cache_folder, cached, recipe_digest, whole

RECIPE = {"task": "sort", "steps": 3, "size": {"hidden": 32}}

# Says that it has begun, writes one file of two, waits for the word, writes the other.
MAKER = """
import pathlib, sys, time
from kl_companion.llm.cache import cached
word, begun = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
def make(folder):
    (folder / "a.txt").write_text("first" * 1000)
    begun.touch()
    while not word.exists():
        time.sleep(.01)
    (folder / "b.txt").write_text("second" * 1000)
folder = cached({"one": 1}, make)
print([len((folder / name).read_text()) for name in ("a.txt", "b.txt")])
"""


def start_maker(tmp_path: Path, name: str) -> tuple[subprocess.Popen[str], Path]:
    begun = tmp_path / f"begun-{name}"
    command = [sys.executable, "-c", MAKER, str(tmp_path / "word"), str(begun)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    wait_for(begun, process)
    return process, begun


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, "it ended before it began"
        assert time.monotonic() < until
        time.sleep(0.01)


def write(text: str = "content") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "file.txt").write_text(text)

    return make


def never(folder: Path) -> None:
    raise AssertionError(f"made again in {folder}")


def test_it_is_made_once_and_found_again(model_cache: Path) -> None:
    folder = cached(RECIPE, write())
    assert folder == model_cache / recipe_digest(RECIPE)
    assert cached(dict(reversed(RECIPE.items())), never) == folder  # the order of the keys does not count
    assert (folder / "deep" / "file.txt").read_text() == "content"
    assert json.loads((folder / "content.json").read_text())["recipe"] == RECIPE


def test_each_part_of_the_recipe_counts(model_cache: Path) -> None:
    other = [{**RECIPE, "steps": 4}, {**RECIPE, "size": {"hidden": 33}}, {**RECIPE, "until": None}]
    assert len({recipe_digest(recipe) for recipe in [RECIPE, *other]}) == 4
    assert cached(RECIPE, write()) != cached(other[0], write())


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), Path("here")])
def test_a_recipe_that_is_not_json_is_refused(value: object, model_cache: Path) -> None:
    with pytest.raises(ValueError, match="a recipe must be JSON, so that it can name a folder"):
        cached({"a": value}, never)


def test_two_processes_at_once_both_get_whole_files(model_cache: Path, tmp_path: Path) -> None:
    makers = [start_maker(tmp_path, name)[0] for name in ("one", "two")]  # both are half-way now
    assert [path.name[:12] for path in model_cache.iterdir()] == [".unfinished-"] * 2
    (tmp_path / "word").touch()
    assert [maker.communicate(timeout=60)[0].strip() for maker in makers] == ["[5000, 6000]"] * 2
    assert [path.name for path in model_cache.iterdir()] == [recipe_digest({"one": 1})]


@pytest.mark.interruption
def test_a_kill_half_way_leaves_nothing_that_counts(model_cache: Path, tmp_path: Path) -> None:
    killed, _ = start_maker(tmp_path, "killed")
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (left,) = model_cache.iterdir()
    assert (left / "a.txt").is_file()
    assert not (left / "b.txt").exists()
    folder = cached({"one": 1}, write())
    assert folder.name == recipe_digest({"one": 1})
    assert (folder / "deep" / "file.txt").is_file()

    half = model_cache / f".{left.name}-x"  # what `save_model` writes beside the folder that it fills
    half.mkdir()
    for path in (left, half):
        os.utime(path, (0, 0))  # a day later
    cached({"two": 2}, write())
    assert not left.exists()
    assert not half.exists()


def test_a_young_unfinished_folder_is_left_to_its_owner(model_cache: Path) -> None:
    young = model_cache / ".unfinished-young"
    young.mkdir(parents=True)
    cached(RECIPE, write())
    assert young.is_dir()


def test_a_full_disk_is_reported_and_leaves_nothing(model_cache: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        cached(RECIPE, full)
    assert list(model_cache.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no digests", "digests cut", "digests odd"])
def test_a_damaged_entry_is_noticed_and_made_again(damage: str, model_cache: Path) -> None:
    folder = cached(RECIPE, write())
    file, content = folder / "deep" / "file.txt", folder / "content.json"
    {
        "cut": lambda: file.write_text("con"),
        "changed": lambda: file.write_text("c0ntent"),
        "gone": lambda: file.unlink(),
        "no digests": lambda: content.unlink(),
        "digests cut": lambda: content.write_text(content.read_text()[:-9]),
        "digests odd": lambda: content.write_text("[1]"),
    }[damage]()
    assert not whole(folder)
    assert cached(RECIPE, write()) == folder
    assert file.read_text() == "content"
    assert whole(folder)
    assert [path.name for path in model_cache.iterdir()] == [folder.name]


def test_where_models_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KL_COMPANION_CACHE", "KL_COMPANION_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    for name in ("tables", "book/experiments"):
        (project / name).mkdir(parents=True)
    (project / "_toc.yml").touch()
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == tmp_path / "home" / ".cache" / "kl_companion"
    monkeypatch.chdir(project / "book" / "experiments")
    assert cache_folder() == project / "_build" / "models"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KL_COMPANION_ROOT", str(project))
    assert cache_folder() == project / "_build" / "models"
    monkeypatch.setenv("KL_COMPANION_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "home" / "mine"
