"""Locks and temporary folders last as long as their process, whatever ends it."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kl_companion.tables.holding import alone, temporary

HOLDER = """
import sys, time
from pathlib import Path
from kl_companion.tables.holding import alone, temporary
with alone(Path(sys.argv[1]), lambda: print("waits", flush=True)), temporary("kl-toy-") as folder:
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
    with temporary("kl-toy-") as own:
        assert Path(folder).is_dir()  # its owner lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert other.stdout is not None
    its = other.stdout.readline().strip()
    assert not Path(folder).exists()
    assert not own.exists()
    other.kill()
    other.communicate()
    with temporary("kl-other-"):
        assert Path(its).is_dir()
    with temporary("kl-toy-") as own:
        assert sorted(path.name for path in place.iterdir()) == [own.name, "locks"]
    said_here: list[str] = []
    with alone(place / "locks/lock", lambda: said_here.append("waits")):
        pass
    assert said_here == []


def test_a_folder_is_never_seen_without_its_lock(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.mkdtemp

    def slow(prefix: str) -> str:
        folder = made(prefix=prefix)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "mkdtemp", made)
            with temporary("kl-toy-"):  # another process, in the meantime
                pass
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", slow)
    with temporary("kl-toy-") as folder:
        assert folder.is_dir()


def test_one_after_the_other(place: Path) -> None:
    inside, most, waited = 0, 0, list[int]()

    def work(number: int) -> None:
        nonlocal inside, most
        with alone(place / "lock", lambda: waited.append(number)):
            inside += 1
            most = max(most, inside)
            ready.wait(0.05)
            inside -= 1

    ready = threading.Event()
    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(waited) == 3


def test_a_system_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    (place / "kl-toy-old").mkdir()
    with alone(place / "lock", lambda: pytest.fail("it waits")), temporary("kl-toy-") as folder:
        assert os.listdir(folder) == []
    assert (place / "kl-toy-old").is_dir()
    assert not folder.exists()
