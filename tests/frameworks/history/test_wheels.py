"""Fetching wheels, with pip replaced: nothing here needs a network."""

import hashlib
import shutil
import subprocess

import pytest

from kl_companion.frameworks.history import wheels
from kl_companion.frameworks.installed import Unavailable
from tests.frameworks.history import planted


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index that is a folder, and an empty place for releases; what pip was asked."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for version in planted.VERSIONS[:3]:
        planted.wheel(shelf, version)
    asked = []

    def pip(*arguments):
        asked.append(arguments)
        said, status = "", 0
        if arguments[0] == "index":
            said = "toy (0.3)\nAvailable versions: 0.3, 0.10, 0.2, 0.1\n" if arguments[2] == "toy" else ""
            status = int(arguments[2] != "toy")
        else:
            name, _, version = arguments[-1].partition("==")
            found = list(shelf.glob(f"{name}-{version}[-.]*"))
            status = int(not found)
            for file in found:
                shutil.copy(file, arguments[arguments.index("--dest") + 1])
        return subprocess.CompletedProcess(arguments, status, said, "" if not status else "no such thing")

    monkeypatch.setattr(wheels, "_pip", pip)
    monkeypatch.setattr(wheels, "RELEASES", tmp_path / "releases")
    return shelf, asked


def test_versions_are_sorted_as_numbers(index):
    assert wheels.published("toy") == ("0.1", "0.2", "0.3", "0.10")
    order = ["0.2", "0.2.0.post1", "0.2.0.post2", "0.10", "2025.3.1", "2025.10.1"]
    assert sorted(sorted(order), key=wheels.key) == order


def test_an_index_that_does_not_answer_is_said(index):
    with pytest.raises(ConnectionError, match="pip finds no versions of other: no such thing"):
        wheels.published("other")
    with pytest.raises(ConnectionError, match="pip cannot fetch toy 7: no such thing"):
        wheels.fetch("toy", "7")
    assert wheels.fetched("toy") == ()


def test_a_wheel_is_unpacked_once_with_its_digest_and_date(index):
    shelf, asked = index
    found = wheels.fetch("toy", "0.2")
    assert (found.root / "toy/loss.py").read_text() == planted.files("0.2")["toy/loss.py"]
    assert not (found.root / "toy/data.bin").exists()
    (file,) = shelf.glob("toy-0.2-*")
    assert wheels.wheel_of(found) == (file.name, hashlib.sha256(file.read_bytes()).hexdigest(), "2025-01-02")
    before = len(asked)
    assert wheels.fetch("toy", "0.2") == found == wheels.release("toy", "0.2")
    assert len(asked) == before
    assert wheels.fetched("toy") == ("0.2",)
    assert [p.name for p in wheels.RELEASES.iterdir()] == ["toy-0.2"]


def test_a_source_distribution_is_no_wheel(index):
    shelf, _ = index
    (shelf / "toy-9.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"toy 9 is published as toy-9\.tar\.gz, expected a wheel"):
        wheels.fetch("toy", "9")
    assert wheels.fetched("toy") == ()


def test_a_release_that_is_not_here_names_the_command(index):
    wheels.fetch("toy", "0.1")
    with pytest.raises(
        Unavailable, match=r"here are 0\.1\. Fetch it: kl-companion frameworks fetch toy 0\.3"
    ):
        wheels.release("toy", "0.3")


def test_a_release_that_needs_another_python_is_seen_and_fetched(tmp_path, monkeypatch):
    """By pip itself, from an index that is a folder."""
    import zipfile

    shelf = tmp_path / "index" / "toy"
    shelf.mkdir(parents=True)
    links = []
    for version, needs in (("0.1", "3.8"), ("0.2", "99.1")):
        file, about = f"toy-{version}-py3-none-any.whl", f"toy-{version}.dist-info"
        with zipfile.ZipFile(shelf / file, "w") as archive:
            head = f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\nRequires-Python: >={needs}\n"
            archive.writestr(f"{about}/METADATA", head)
            archive.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{about}/RECORD", "")
            archive.writestr("toy/loss.py", "x = 1\n")
        links.append(f'<a href="{file}" data-requires-python="&gt;={needs}">{file}</a>')
    (shelf / "index.html").write_text("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(wheels, "RELEASES", tmp_path / "releases")
    assert wheels.published("toy") == ("0.1", "0.2")
    assert (wheels.fetch("toy", "0.2").root / "toy/loss.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("name", ["/abs.py", "../outside.py", "toy/../../outside.py"])
def test_nothing_is_written_outside_of_its_folder(tmp_path, name):
    import zipfile

    path = tmp_path / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "x = 1\n")
        archive.writestr("toy/inside.py", "x = 1\n")
    wheels.unpack(path, tmp_path / "place" / "deep")
    written = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.py")}
    assert written == {"place/deep/toy/inside.py"}
