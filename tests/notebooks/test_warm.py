"""A Python with the slow imports done behaves like any other, and dies with the one that asked for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm

SAY = """
import json, os, sys
said = {"argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path[:2], "name": __name__, "file": __file__}
said |= {"hash": hash("text") if os.environ.get("PYTHONHASHSEED") else 0, "given": sys.stdin.read()}
said |= {"own": any(m.startswith("kl_companion") for m in sys.modules), "variable": os.environ["VARIABLE"]}
print(json.dumps(said))
print("torch" in sys.modules, file=sys.stderr)
sys.exit(7)
"""
LAST = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """The variables that lead to a warm process: the one of the group of tests, or one started here."""
    if warm.FOLDER in os.environ:
        yield dict(os.environ)
        return
    with warm.warm() as variables:
        if not variables:
            pytest.skip("no process descriptors on this system")
        yield {**os.environ, **variables, "OMP_NUM_THREADS": "1"}


COMMAND = [sys.executable, "-I", "-S", warm.__file__]


def said(command: list[str], environment: dict[str, str], folder: Path) -> tuple[dict[str, Any], bool]:
    """What the script says about where it runs, and whether torch was there before it began."""
    done = subprocess.run(
        [*command, "say.py", "one", "two"],
        cwd=folder,
        env={**environment, "VARIABLE": "value", "PYTHONPATH": str(folder / "more")},
        input="input",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    return json.loads(done.stdout), done.stderr.strip() == "True"


@pytest.mark.parametrize("seed", [None, "0", "5"])
def test_it_does_what_an_ordinary_interpreter_does(
    seed: str | None, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "say.py").write_text(SAY)
    given = {**environment, **({} if seed is None else {"PYTHONHASHSEED": seed})}
    ordinary, cold = said([sys.executable], given, tmp_path)
    ours, loaded = said(COMMAND, given, tmp_path)
    assert ours == ordinary
    assert not ours["own"]
    assert not cold
    assert loaded == (seed in (None, "0"))  # nothing is warm for another seed


def test_with_several_threads_it_is_an_ordinary_interpreter(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "say.py").write_text(SAY)
    assert not said(COMMAND, {**environment, "OMP_NUM_THREADS": "2"}, tmp_path)[1]


def test_it_dies_with_the_one_that_asked(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(LAST)
    with subprocess.Popen(
        [*COMMAND, "last.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as asked:
        assert asked.stdout is not None
        child = int(asked.stdout.readline())
        asked.kill()
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the fork lives on")


def test_it_is_interrupted_with_the_one_that_asked(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(LAST)
    with subprocess.Popen(
        [*COMMAND, "last.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asked:
        assert asked.stdout is not None
        assert asked.stderr is not None
        asked.stdout.readline()
        asked.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in asked.stderr.read()
    assert asked.returncode == 128 + signal.SIGINT


def test_a_crash_is_reported(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text("import os; os.abort()")
    done = subprocess.run([*COMMAND, "crash.py"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 128 + signal.SIGABRT
