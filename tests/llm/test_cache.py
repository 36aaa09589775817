"""A cached folder is whole or not there: under a race, a kill, a full disk and damaged files."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kl_companion.llm.cache import cache_folder, cached, part, recipe_digest, whole

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


# -- made in parts -------------------------------------------------------------------------------------------


class Parts:
    """Makes three parts, and stops before the one of its choice; remembers which it wrote."""

    def __init__(self, stop: str = "") -> None:
        self.stop, self.wrote = stop, list[str]()

    def __call__(self, folder: Path) -> None:
        for name in ("a", "b", "c"):
            part(folder, name, self.write)

    def write(self, path: Path) -> None:
        path.write_text("half")
        if path.name == f".{self.stop}.part":
            raise KeyboardInterrupt
        path.write_text(f"content of {path.name}")
        self.wrote.append(path.name)


def interrupted(stop: str) -> Path:
    """The unfinished folder of a run that was stopped while it wrote a part."""
    with pytest.raises(KeyboardInterrupt):
        cached(RECIPE, Parts(stop), resume=True)
    folder = cache_folder() / recipe_digest(RECIPE)
    assert not folder.exists()
    return folder.with_name(f".unfinished-{folder.name}")


def test_an_interrupted_entry_goes_on_where_it_stopped(model_cache: Path) -> None:
    unfinished = interrupted("c")
    assert sorted(path.name for path in unfinished.iterdir()) == ["a", "b", "content.json"]
    (unfinished / ".content.json.7.part").write_text("what a kill has left")
    going_on = Parts()
    folder = cached(RECIPE, going_on, resume=True)
    assert going_on.wrote == [".c.part"]
    assert {path.name: path.read_text()[:7] for path in folder.iterdir()} == {
        **dict.fromkeys("abc", "content"),
        "content.json": '{\n "fil',
    }
    assert json.loads((folder / "content.json").read_text())["recipe"] == RECIPE
    assert whole(folder)
    assert not unfinished.exists()
    assert cached(RECIPE, never, resume=True) == folder


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no notes", "notes cut", "notes odd"])
def test_a_damaged_part_is_made_again(damage: str, model_cache: Path) -> None:
    unfinished = interrupted("c")
    b, notes = unfinished / "b", unfinished / "content.json"
    {
        "cut": lambda: b.write_text("cont"),
        "changed": lambda: b.write_text("c0ntent of .b.part"),
        "gone": lambda: b.unlink(),
        "no notes": lambda: notes.unlink(),
        "notes cut": lambda: notes.write_text(notes.read_text()[:-9]),
        "notes odd": lambda: notes.write_text('{"files": 3}'),
    }[damage]()
    going_on = Parts()
    folder = cached(RECIPE, going_on, resume=True)
    again = (
        [".b.part", ".c.part"] if damage in ("cut", "changed", "gone") else [".a.part", ".b.part", ".c.part"]
    )
    assert going_on.wrote == again
    assert whole(folder)


def test_a_damaged_entry_is_made_again_in_parts(model_cache: Path) -> None:
    def make(folder: Path) -> None:
        Parts()(folder)
        write()(folder)

    folder = cached(RECIPE, make, resume=True)
    (folder / "b").write_text("other")
    assert not whole(folder)
    assert cached(RECIPE, make, resume=True) == folder
    assert whole(folder)
    assert [path.name for path in model_cache.iterdir() if path.is_dir()] == [folder.name]


def test_a_failure_before_the_first_part_leaves_no_folder(model_cache: Path) -> None:
    def refuse(folder: Path) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        cached(RECIPE, refuse, resume=True)
    assert [path.name for path in model_cache.iterdir() if path.is_dir()] == []


def test_parts_of_a_day_ago_are_removed(model_cache: Path) -> None:
    unfinished = interrupted("c")
    os.utime(unfinished, (0, 0))
    cached({"other": 1}, write())
    assert not unfinished.exists()


def test_one_makes_it_and_the_others_wait(model_cache: Path) -> None:
    made, waited, begun, word = list[str](), list[int](), threading.Event(), threading.Event()

    def make(folder: Path) -> None:
        made.append(folder.name)
        begun.set()
        assert word.wait(60)
        write()(folder)

    def wanted(number: int) -> None:
        cached(RECIPE, make, resume=True, waiting=lambda: (waited.append(number), word.set()))

    threads = [threading.Thread(target=wanted, args=[number]) for number in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert waited == [1]
