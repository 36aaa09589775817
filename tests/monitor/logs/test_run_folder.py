"""Reading a run's folder: what is there, what was cut in half, and what is refused."""

import math
import re
from pathlib import Path

import pytest
import torch
import yaml

from kl_companion.monitor import KLMonitor, read_run, run_verdicts
from kl_companion.monitor.observation import COLUMNS
from tests.support import monitored_runs as runs
from tests.support.monitored import small_batch

BROKEN = yaml.safe_load(Path(__file__).with_name("broken.yml").read_text(encoding="utf-8"))
CSV, JSONL, JSON = "kl_monitor.csv", "kl_monitor_tokens.jsonl", "kl_monitor.json"


@pytest.fixture
def folder(tmp_path):
    return runs.write(tmp_path / "run", runs.healthy(count=6))


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_run_is_what_was_written(tmp_path):
    rows = [{"step": 20, "answers": 3, "tokens": 40, "kl": 0.25, "logged": math.nan, "reward": -1.5}]
    token = {
        "answer": 1,
        "position": 2,
        "token": "ä\u2028<b>",
        "before": "so\nit",
        "log_ratio": -3,
        "logp": -4.0,
        "ref_logp": -1.0,
    }
    runs.write(tmp_path, rows, {"beta": 0.1, "clamp": [None, 2]}, [{"step": 20, "tokens": [token]}])
    run = read_run(tmp_path)
    (row,) = run.observations
    assert (row.step, row.answers, row.tokens, row.kl, row.reward) == (20, 3, 40, 0.25, -1.5)
    assert math.isnan(row.logged)
    assert row.kl_low is row.seconds is None
    assert run.last is row
    assert run.series("kl") == [0.25]
    assert run.tokens[20][0]._asdict() == token
    assert (run.settings["beta"], run.settings["clamp"], run.cut) == (0.1, [None, 2], False)


def test_the_columns_are_those_of_the_format():
    assert list(COLUMNS) == runs.COLUMNS


def observed(folder, **given):
    """What a monitor observes of a small batch, and the run that is read from its folder."""
    seen = KLMonitor(folder, estimator="k3", beta=0.1, eos_token_id=2).observe(**small_batch(), **given)
    return seen, read_run(folder)


@pytest.mark.parametrize("column", ["logged", "loss"])
@pytest.mark.parametrize(
    ("x", "cell", "said"),
    [(math.nan, "nan", "NaN"), (math.inf, "inf", "infinite"), (-math.inf, "-inf", "infinite")],
)
def test_no_number_of_the_trainer_is_found(tmp_path, column, x, cell, said):
    seen, run = observed(tmp_path, step=7, **{column: x})
    table = (tmp_path / CSV).read_text(encoding="utf-8").splitlines()
    assert dict(zip(*(line.split(",") for line in table), strict=True))[column] == cell
    for row in (seen, run.last):
        assert repr(getattr(row, column)) == repr(x)
    first = run_verdicts(run)[0]
    topic = "not_a_number" if math.isnan(x) else "infinite"
    assert (first.topic, first.says) == (topic, f"{column} is {said} at step 7.")


def test_what_is_not_known_is_no_nan(tmp_path):
    seen, run = observed(tmp_path)
    assert seen.logged is run.last.logged is run.last.logged_noise is run.last.mismatch is None
    assert "not_a_number" not in {verdict.topic for verdict in run_verdicts(run)}


def test_an_observation_is_read_as_it_was_made(tmp_path):
    more = {"logged": 0.3, "loss": 0.1, "step": 40, "rewards": torch.tensor([0.0, 1.0, 1.0])}
    said = torch.full((3, 3), -1.0, dtype=torch.float64)
    seen, run = observed(tmp_path, **more, behavior_logp=said, advantages=said)
    assert run.last.known() == pytest.approx(seen.known(), rel=1e-9)
    assert set(COLUMNS) - {"step", *seen.known()} == {"dead_zone", "equal_groups"}
    assert len(run.tokens[40]) == seen.tokens == 5


def test_the_later_observation_of_a_step_counts(folder):
    again = runs.write(
        folder.parent / "again", [{"step": 30, "answers": 1, "tokens": 2, "kl": 9.0}], tokens=[]
    )
    with (folder / CSV).open("a", encoding="utf-8") as file:
        file.write((again / CSV).read_text(encoding="utf-8").splitlines()[1] + "\n")
    run = read_run(folder)
    assert [row.step for row in run.observations] == [10, 20, 30, 40, 50, 60]
    assert run.observations[2].kl == 9.0


@pytest.mark.parametrize("kept", [3, 40, 150])
def test_a_last_row_cut_in_half_is_left_out(folder, kept):
    content = (folder / CSV).read_text(encoding="utf-8")
    start = content.rstrip("\n").rfind("\n") + 1
    (folder / CSV).write_text(content[: start + kept], encoding="utf-8")
    run = read_run(folder)
    assert run.cut
    assert len(run.observations) == 5


def test_a_last_row_that_lacks_its_line_end_only_is_whole(folder):
    content = (folder / CSV).read_text(encoding="utf-8")
    (folder / CSV).write_text(content[:-1], encoding="utf-8")
    assert len(read_run(folder).observations) == 6


def test_tokens_cut_within_a_letter_are_left_out(folder):
    content = (folder / JSONL).read_bytes()
    (folder / JSONL).write_bytes(content + '{"step": 70, "tokens": [{"token": "ä'.encode()[:-1])
    run = read_run(folder)
    assert run.cut
    assert max(run.tokens) == 60


@pytest.mark.parametrize("name", [CSV, JSONL, JSON])
def test_a_folder_without_a_file_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"has no {re.escape(name)}, expected the folder"):
        read_run(folder)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"has no kl_monitor.csv and no kl_monitor_tokens.jsonl and no kl_mon"
    ):
        read_run(tmp_path / "nothing")


@pytest.mark.parametrize(("file", "old", "new", "said"), BROKEN)
def test_what_is_broken_is_refused(folder, file, old, new, said):
    edit(folder / file, old, new)
    with pytest.raises(ValueError, match=r"expected|Known") as refusal:
        read_run(folder)
    assert said in str(refusal.value)


def test_a_run_without_an_observation_is_refused(tmp_path):
    runs.write(tmp_path, [])
    with pytest.raises(ValueError, match=r"kl_monitor.csv holds no observation, expected one or more"):
        read_run(tmp_path)


def test_what_is_no_text_is_refused(folder):
    (folder / CSV).write_bytes(b"\xff\xfe\n" + (folder / CSV).read_bytes())
    with pytest.raises(ValueError, match=r"kl_monitor.csv is no text at byte 0, expected UTF-8"):
        read_run(folder)
