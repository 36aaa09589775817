"""Locks and temporary folders last as long as their process, whatever ends it."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kl_book.file_lock import exclusive_lock
from kl_book.tables.temporary_folder import temporary_folder

HOLDER = """
import sys, time
from pathlib import Path
from kl_book.file_lock import exclusive_lock
from kl_book.tables.temporary_folder import temporary_folder
lock = exclusive_lock(Path(sys.argv[1]), lambda: print("waits", flush=True))
with lock, temporary_folder("kl-toy-") as folder:
    (folder / "deep").mkdir()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def holder(place: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", HOLDER, str(place / "locks/lock")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_what_a_killed_process_held_is_free(place: Path) -> None:
    process, folder = holder(place)
    other, said = holder(place)
    assert Path(folder).is_dir()
    assert said == "waits"
    with temporary_folder("kl-toy-") as own:
        assert Path(folder).is_dir()  # its owner lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert other.stdout is not None
    its = other.stdout.readline().strip()
    assert not Path(folder).exists()
    assert not own.exists()
    other.kill()
    other.communicate()
    with temporary_folder("kl-other-"):
        assert Path(its).is_dir()
    with temporary_folder("kl-toy-") as own:
        assert sorted(path.name for path in place.iterdir()) == [own.name, "locks"]
    said_here: list[str] = []
    with exclusive_lock(place / "locks/lock", lambda: said_here.append("waits")):
        pass
    assert said_here == []


def test_a_folder_is_never_seen_without_its_lock(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.mkdtemp

    def slow(prefix: str) -> str:
        folder = made(prefix=prefix)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "mkdtemp", made)
            with temporary_folder("kl-toy-"):  # another process, in the meantime
                pass
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", slow)
    with temporary_folder("kl-toy-") as folder:
        assert folder.is_dir()


def test_a_system_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    (place / "kl-toy-old").mkdir()
    with (
        exclusive_lock(place / "lock", lambda: pytest.fail("it waits")),
        temporary_folder("kl-toy-") as folder,
    ):
        assert os.listdir(folder) == []
    assert (place / "kl-toy-old").is_dir()
    assert not folder.exists()
