"""Nothing is lost when work is disturbed, by kills and by full disks; and what is lost would be counted."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.reliability import killing
from tests.reliability.interruptions import trials
from tests.reliability.killing import Disturbance, Ended, Whole, Work, ended, full, killed, killed_at_a_write
from tests.support.data import data

DATA = data(__file__)

pytestmark = pytest.mark.interruption


class Script(Work):
    """What careless.py does."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def prepare(self, folder: Path) -> None:
        pass

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, str(Path(killing.__file__).with_name("careless.py")), self.fault]

    def result(self, folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "project").glob("table.csv")}

    def finished(self, folder: Path) -> set[str]:
        return {piece for piece in "ab" if (folder / "project" / piece).is_file()}


def killed_in_the_middle(
    work: Work, folder: Path, whole: Whole, draw: random.Random
) -> tuple[Ended, list[str]]:
    """Kill the script where it says that it is."""
    there, since = folder / "there", time.monotonic()
    running = work.start(folder, {"KL_PAUSE": str(there)})
    while not there.exists():
        assert running.wait(0.01) is None, running.said()
    family = killing.alive(running.process.pid or 0)
    there.unlink()
    family[0].send_signal(signal.SIGKILL)
    return ended(running, since), killing.still_running(family, folder)


def test_nothing_is_lost() -> None:
    found = list(trials(quick=True, seed=0))
    assert sum(trial.tried for trial in found) >= 4
    assert [line for trial in found for line in trial.said] == []
    assert [(trial.failed, trial.lost) for trial in found] == [(0, 0)] * len(found)


def test_careful_work_loses_nothing(tmp_path: Path) -> None:
    work = Script("")
    whole = killing.undisturbed(work, tmp_path)
    assert whole.writes >= 12
    ways: list[Disturbance] = [killed_in_the_middle, killed(), *6 * [killed_at_a_write], *6 * [full]]
    assert killing.trial("it", work, tmp_path, whole, ways, random.Random(0)) == ("it", 14, 0, 0, ())


@pytest.mark.parametrize(("fault", "failed", "lost", "said"), DATA["lost"])
def test_what_is_lost_is_counted(
    fault: str, failed: int, lost: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killing, "GRACE", 1.0)
    work = Script(fault)
    whole = killing.undisturbed(work, tmp_path)
    way = full if fault == "raises" else killed_in_the_middle
    found = killing.trial("it", work, tmp_path, whole, [way], random.Random(1))
    assert found[:4] == ("it", 1, failed, lost)
    assert f"it, number 1: {said}" in found.said[0]
