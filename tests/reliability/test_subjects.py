"""What each subject counts, and that a failure or a loss is seen."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.refusals import Case
from tests.reliability import __main__ as command
from tests.reliability import determinism, installation, numerics, refusals, security
from tests.reliability.trying import Trial


def test_examples_are_counted_by_kind() -> None:
    lines = [
        {"test": "tests/numerics/test_samples.py::test_a[k1]", "examples": 10, "failed": False},
        {"test": "tests/numerics/test_samples.py::test_a[k2]", "examples": 4, "failed": True},
        {"test": "tests/numerics/test_public.py::test_b", "examples": 7, "failed": False},
        {"test": "tests/numerics/test_tally.py::test_c", "examples": 1, "failed": False},
    ]
    samples, public = numerics.counted(lines)
    assert (samples.tried, samples.failed, samples.lost) == (14, 1, None)
    assert samples.said == ("tests/numerics/test_samples.py::test_a[k2]",)
    assert (public.tried, public.failed) == (7, 0)
    assert "never NaN" in public.what


def test_every_file_of_properties_has_a_line() -> None:
    files = {path.name for path in Path(numerics.__file__).parents[1].glob("numerics/test_*.py")}
    # the counter itself, and what draws no examples
    assert files - set(numerics.WHAT) == {"test_tally.py", "test_properties.py"}


def test_environments_are_counted_and_what_was_not_tried_is_not() -> None:
    outcomes = [
        {"environment": "no extras", "tried": "pip check", "status": "passed", "said": ""},
        {"environment": "no extras", "tried": "imports", "status": "failed", "said": "No module"},
        {"environment": "Python 3.12", "tried": "everything", "status": "not tried", "said": "no torch"},
        {"environment": "Python 3.12", "tried": "what pip finds", "status": "passed", "said": ""},
    ]
    core, newer = installation.counted(outcomes)
    assert core == Trial("installation, no extras", 2, 1, None, ("no extras, imports: No module",))
    assert (newer.tried, newer.failed) == (1, 0)


def test_a_message_that_is_not_clear_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Case("nothing", "everything", lambda: None)
    monkeypatch.setattr(refusals, "GROUPS", {"One": (silent,), "Other": (silent, silent)})
    assert [trial.tried for trial in refusals.trials(True, 0)] == [1]
    found = list(refusals.trials(False, 0))
    assert [(trial.tried, trial.failed) for trial in found] == [(1, 1), (2, 2)]
    assert "nothing was refused" in found[0].said[0]


def test_tests_of_security_are_counted(tmp_path: Path) -> None:
    lines = ["import pytest", "def test_a(): pass", "def test_b(): assert 0"]
    lines += ["@pytest.fixture", "def broken(): raise OSError", "def test_c(broken): pass"]
    lines += ["def test_d(): pytest.skip()"]
    (tmp_path / "test_toy.py").write_text("\n".join(lines))
    trial = security.passed("toys", [str(tmp_path / "test_toy.py"), "-c", "/dev/null"])
    assert (trial.what, trial.tried, trial.failed) == ("toys", 3, 2)
    assert [line.partition("::")[2] for line in trial.said] == ["test_b", "test_c"]
    with pytest.raises(RuntimeError, match="did not run"):
        security.passed("toys", ["--no-such-option"])


def test_a_page_that_loads_from_elsewhere_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="run `make book` first"):
        security.loads(tmp_path)
    (tmp_path / "index.html").write_text('<img src="a.png">')
    (tmp_path / "b.html").write_text(
        '<img src="https://x.org/a.png"><script src="https://x.org/a.js"></script>'
    )
    trial = security.loads(tmp_path)
    assert (trial.tried, trial.failed, len(trial.said)) == (2, 1, 2)


def test_packages_that_nobody_was_asked_about_are_not_tried() -> None:
    found: list[dict[str, Any]] = [
        {"name": "a", "version": "1", "vulns": []},
        {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]},
        {"name": "c", "skip_reason": "no answer"},
    ]
    trial = security.advised([("one.lock", {"dependencies": found}), ("other.lock", "no answer")])
    assert (trial.tried, trial.failed) == (2, 1)
    assert trial.said[0] == "one.lock: b 2: CVE-1, fixed in 3"
    assert trial.said[-1] == "other.lock: NOT LOOKED UP: no answer"


def test_how_far_two_tables_are_apart() -> None:
    one = [{"name": "a", "x": 1.0, "n": 3}, {"name": "b", "x": 100.0, "n": None}]
    assert determinism.distances(one, one) == [0.0, 0.0]
    assert determinism.distances(one, [{**one[0], "x": 1.5}, one[1]]) == [pytest.approx(0.5 / 1.5), 0.0]
    assert determinism.distances(one, [one[0], {**one[1], "x": 101.0}]) == [0.0, pytest.approx(1 / 101)]
    assert determinism.distances([{"x": 0.01}], [{"x": 0.02}]) == [pytest.approx(0.01)]
    assert determinism.distances(one, [one[0]]) == [math.inf, math.inf]
    assert determinism.distances(one, [one[0], {**one[1], "n": 4}]) == [0.0, math.inf]
    assert determinism.distances(one, [{**one[0], "name": "c"}, one[1]]) == [math.inf, 0.0]
    assert determinism.distances([{"x": None}], [{"x": 1.0}]) == [math.inf]


@pytest.mark.interruption
def test_a_table_with_two_threads_is_the_same() -> None:
    (trial,) = determinism.trials(True, 0)
    assert (trial.tried, trial.failed) == (1, 0), trial.said


# -- the command ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "lost", "status"), [(0, None, 0), (0, 0, 0), (1, None, 1), (0, 1, 1)], ids=str
)
def test_the_status_tells_of_failures_and_losses(
    failed: int,
    lost: int | None,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def trials(quick: bool, seed: int) -> Iterator[Trial]:
        assert (quick, seed) == (True, 3)
        yield Trial("something", 5, failed, lost, ("a line",) if failed else ())

    module = ModuleType("a_subject")
    module.trials = trials  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_subject", module)
    monkeypatch.setattr(command, "SUBJECTS", {"one": "a_subject"})
    file = tmp_path / "lines.json"
    assert command.main(["--quick", "--seed", "3", "--json", str(file)]) == status
    (row,) = json.loads(file.read_text())
    assert {name: row[name] for name in ("subject", "what", "tried", "failed", "lost")} == {
        "subject": "one",
        "what": "something",
        "tried": 5,
        "failed": failed,
        "lost": lost,
    }
    said = capsys.readouterr().out
    assert f"something: 5 tried, {failed} failed" in said
    assert ("a line" in said) == bool(failed)
    assert ("lost" in said) == (lost is not None)
