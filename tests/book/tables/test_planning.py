"""What a run will take is said before it starts: by the points left, and by their seconds last time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kl_book import tables
from kl_book.__main__ import main
from kl_book.tables.planning import Plan, announcement, plan
from tests.support.tables.network import quiet

Runs = list[dict[str, Any]]
Edit = Callable[[str, str, str], None]
PROVENANCE = "tables/toy/provenance.json"


def took(project: Path, seconds: float | None) -> None:
    """Let the four points of the last run have taken so long together."""
    path = project / PROVENANCE
    record = json.loads(path.read_text())
    record["points"]["seconds"] = seconds
    path.write_text(json.dumps(record))


def test_a_table_that_was_never_made_has_no_time(project: Path) -> None:
    assert plan("toy") == Plan("toy", 4, 4, None)
    assert announcement([plan("toy")], 2) == [
        "toy: 4 of 4 points to run, never timed",
        "1 of 1 tables to make",
    ]


def test_a_manifest_may_guess_until_a_run_was_timed(project: Path, quick: Runs, edit: Edit) -> None:
    edit("tables/toy/manifest.yml", "cost: seconds", "cost: seconds\nminutes: 6")
    assert plan("toy") == Plan("toy", 4, 4, 1440.0, guessed=True)
    assert plan("toy", profile="smoke") == Plan("toy", 2, 2, None)
    guess = "toy: 4 of 4 points to run, about 12 minutes by its manifest, never timed"
    assert announcement([plan("toy")], 2) == [
        guess,
        "1 of 1 tables to make: about 12 minutes with 2 jobs, by their manifests",
    ]
    edit("tables/toy/manifest.yml", "minutes: 6", "minutes: 6\nalone: true")
    assert announcement([plan("toy")], 2)[0] == guess.replace("12", "24")
    edit("tables/toy/manifest.yml", "alone: true", "alone: false")
    assert announcement([plan("toy"), Plan("a", 1, 1, 60.0)], 2)[-1] == (
        "2 of 2 tables to make: about 13 minutes with 2 jobs, by their last runs and manifests"
    )
    tables.run("toy", progress=quiet)
    took(project, 40.0)
    assert plan("toy", fresh=True) == Plan("toy", 4, 4, 40.0)


def test_the_seconds_of_a_point_outlive_the_run_that_finished_it(
    project: Path, quick: Runs, edit: Edit
) -> None:
    tables.run("toy", progress=quiet)
    for path in (project / "_build").rglob("seconds.txt"):
        path.write_text("2.5\n")
    edit("tables/toy/manifest.yml", "digits: 3", "digits: 4")  # another table from the same points
    tables.run("toy", progress=quiet)
    points = json.loads((project / PROVENANCE).read_text())["points"]
    assert points == {"resumed": 4, "total": 4, "seconds": 10.0}


def test_a_point_whose_time_is_not_known_leaves_the_sum_open(project: Path, quick: Runs, edit: Edit) -> None:
    tables.run("toy", progress=quiet)
    next((project / "_build").rglob("seconds.txt")).unlink()
    edit("tables/toy/manifest.yml", "digits: 3", "digits: 4")
    tables.run("toy", progress=quiet)
    assert json.loads((project / PROVENANCE).read_text())["points"]["seconds"] is None
    assert plan("toy", fresh=True).seconds is None


def test_points_that_are_finished_cost_nothing(project: Path, quick: Runs, edit: Edit) -> None:
    tables.run("toy", progress=quiet)
    took(project, 40.0)
    assert plan("toy") == Plan("toy", 0, 4, 0.0)
    assert plan("toy", fresh=True) == Plan("toy", 4, 4, 40.0)
    edit("tables/toy/manifest.yml", "seed: [0, 1]", "seed: [0, 1, 2]")
    assert plan("toy") == Plan("toy", 2, 6, 20.0)
    assert announcement([plan("toy")], 1)[0] == "toy: 2 of 6 points to run, about 20 s"


def test_a_provenance_that_cannot_be_read_leaves_the_time_open(project: Path, quick: Runs) -> None:
    tables.run("toy", progress=quiet)
    for text in ("", "{}", '{"points": {"total": 4}}', '{"points": 3}'):
        (project / PROVENANCE).write_text(text)
        assert plan("toy", fresh=True).seconds is None


def test_a_record_of_a_whole_run_alone_stands_for_two_points_at_a_time(project: Path, quick: Runs) -> None:
    tables.run("toy", progress=quiet)
    path = project / PROVENANCE
    record = json.loads(path.read_text())
    for resumed, seconds in ((0, 60.0), (1, None)):
        whole = {**record, "points": {"resumed": resumed, "total": 4}, "wall_seconds": 30.0}
        path.write_text(json.dumps(whole))
        assert plan("toy", fresh=True).seconds == seconds


def test_jobs_share_the_work_as_far_as_there_are_points() -> None:
    given = Plan("a", 4, 8, 400.0)
    assert [given.wall(jobs) for jobs in (1, 2, 4, 16)] == [400.0, 200.0, 100.0, 100.0]
    others = [Plan("b", 1, 1, 30.0), Plan("c", 0, 5, 0.0)]
    assert announcement([given, *others], 2) == [
        "a: 4 of 8 points to run, about 3 minutes",
        "b: 1 of 1 points to run, about 30 s",
        "2 of 3 tables to make: about 4 minutes with 2 jobs, by their last runs",
    ]
    assert announcement([given, Plan("d", 1, 1, None)], 2)[-1] == (
        "2 of 2 tables to make: about 3 minutes with 2 jobs, by their last runs, "
        "and 1 more that were never timed"
    )


def test_the_command_says_it_before_the_first_point(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(tables, "run", lambda name, **options: said.append(capsys.readouterr().err) or [])
    assert main(["table", "run", "--all"]) == 0
    assert said == ["  toy: 4 of 4 points to run, never timed\n  1 of 1 tables to make\n"]
    assert main(["table", "run", "toy", "--quiet"]) == 0
    assert said[1] == ""


def test_a_table_that_takes_hours_is_made_when_it_is_named(
    project: Path, edit: Edit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit("tables/toy/manifest.yml", "cost: seconds", "cost: hours")
    made: list[str] = []
    monkeypatch.setattr(tables, "run", lambda name, **options: made.append(name) or [])
    assert main(["table", "run", "--all"]) == 0
    assert made == []
    assert capsys.readouterr().err == "  toy: takes hours, so --all leaves it: table run toy\n"
    assert main(["table", "run", "toy", "--quiet"]) == 0
    assert made == ["toy"]
