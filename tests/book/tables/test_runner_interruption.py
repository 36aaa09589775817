"""A run that is killed half-way leaves no half-written table, and the next one goes on where it stopped."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kl_book import tables

Edit = Callable[[str, str, str], None]
PATIENCE = 40.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s until {what}"
        time.sleep(0.02)


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def adopting() -> Iterator[None]:
    """Orphans become children of this process, as they do of a desktop session, not of the first process."""
    adopt = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0
    set_child_subreaper = 36
    adopt(set_child_subreaper, 1, 0, 0, 0)
    yield
    adopt(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.interruption
@pytest.mark.parametrize("before", [None, "the table of an earlier run\n"])
def test_a_killed_run_is_resumed(
    project: Path, edit: Edit, toy: dict[str, Any], before: str | None, adopting: None
) -> None:
    log, hang, folder = project / "log", project / "hang", project / "tables/toy"
    hang.touch()  # the second point does not end before this file is gone
    edit("tables/toy/manifest.yml", "{scale: 2.0}", f"{{scale: 2.0, hang: {hang}, log: {log}}}")
    if before is not None:
        (folder / "table.csv").write_text(before)
    names = sorted(path.name for path in folder.iterdir())
    code = f"import sys; sys.path.insert(0, {str(Path(tables.__file__).parents[2])!r})\n"
    code += "from kl_book import tables; tables.run('toy')"
    temporary = Path(tempfile.mkdtemp())  # a short path, for the sockets of the kernels
    environment = {**os.environ, "TMPDIR": str(temporary)}
    runner = subprocess.Popen(
        [sys.executable, "-c", code], cwd=project, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: log.is_file() and "b1" in log.read_text(), "the second point is under way")
        below = psutil.Process(runner.pid).children(recursive=True)
        assert list(temporary.glob("kl-*"))
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    assert runner.returncode == -signal.SIGKILL
    assert len(below) >= 2  # the process of the point, and its kernel
    wait_until(lambda: all(map(gone, below)), "nothing of the killed run is left running")
    assert list(temporary.iterdir()) == []
    shutil.rmtree(temporary)
    assert sorted(path.name for path in folder.iterdir()) == names
    assert before is None or (folder / "table.csv").read_text() == before
    assert len(list(project.glob("_build/tables/toy/cpu/*/rows.csv"))) == 1

    hang.unlink()
    tables.run("toy", jobs=2, progress=lambda line: None)
    runs = [line[:2] for line in log.read_text().splitlines()]
    assert runs[:2] == ["b0", "b1"]
    assert sorted(runs[2:]) == ["a0", "a1", "b1"]
    assert (folder / "table.csv").read_text() == toy["table"]
    assert tables.check() == []
