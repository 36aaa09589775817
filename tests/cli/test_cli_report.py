"""`kl-companion report`: what it prints, where the page goes, and what it refuses."""

import io
import json

import pytest

from kl_companion.cli import main
from tests.support import monitored_runs as runs
from tests.support.data import data

DATA = data(__file__)


def test_a_page_beside_the_run_and_the_verdicts_in_the_terminal(tmp_path, capsys):
    folder = runs.troubled(tmp_path / "run", "bias")
    assert main(["report", str(folder)]) == 0
    first, *middle, last = capsys.readouterr().out.splitlines()
    assert first == "folder of KLMonitor: 40 rows, steps 10 to 400"
    assert any(line.startswith("  ! K2 overstates the KL by 40 %") for line in middle)
    assert last == f"The page: {folder / 'kl_report.html'}"
    page = (folder / "kl_report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "K2 overstates the KL by 40 %" in page


def test_a_healthy_run_says_so(tmp_path, capsys):
    folder = runs.write(tmp_path / "run", runs.healthy())
    out = tmp_path / "pages" / "mine.html"
    assert main(["report", str(folder), "--output", str(out)]) == 0
    assert "The KL costs 0.1" in capsys.readouterr().out
    assert out.is_file()
    assert not (folder / "kl_report.html").exists()


def test_as_data(tmp_path, capsys):
    folder = runs.troubled(tmp_path / "run", "not_a_number")
    assert main(["report", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["level"], data["last_step"], data["rows"], data["notes"]) == ("wrong", 400, 40, [])
    assert data["headline"] == data["verdicts"][0]["says"] == "logged is NaN at step 130."
    assert set(data["verdicts"][0]) == {"level", "topic", "says", "why", "todo", "step"}
    assert data["page"] is None
    assert not list(folder.glob("*.html"))


@pytest.mark.parametrize(("arguments", "said"), DATA["what_is_refused"])
def test_what_is_refused(arguments, said, tmp_path, capsys):
    folder = runs.write(tmp_path / "run", runs.healthy())
    command = ["report", *(x.format(folder=folder) for x in arguments)]
    try:
        status = main(command)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert not list(folder.glob("*.html"))


ROWS = "{'loss': 0.0, 'kl': 0.25, 'completion_length': 100.5, 'grad_norm': 0.5}\n"
WRONG = "step:1 - actor/kl_loss:inf - actor/pg_loss:0.1\n"


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "a.log").write_text(ROWS)
    (tmp_path / "b.log").write_text(WRONG)
    return tmp_path


def test_a_log_in_the_terminal(logs, capsys):
    assert main(["report", str(logs / "a.log")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        "console of Python dictionaries: one row, step 1\n  TRL GRPO 0.14 to 0.15, or Unsloth"
    )
    assert "kl: 0.25 nats per token, 25 nats per answer (kl × mean length)" in " ".join(shown.split())
    assert "What would decide what is open" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert main(["report", str(logs / "a.log"), "--details"]) == 0
    assert len(capsys.readouterr().out) > len(shown)


def test_a_log_as_data_and_what_the_user_knows(logs, capsys):
    options = ["--json", "--release", "0.15", "--beta", "0.04", "--answers", "8"]
    assert main(["report", str(logs / "a.log"), *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["releases"], data["beta"]["source"]) == ("TRL GRPO 0.15", "set by --beta")
    assert data["nats_per_answer"]["last"] == pytest.approx(25.125)
    assert (data["keys"][0]["estimator"], data["keys"][0]["pair"]) == ("K3", "policy/reference")


def test_two_logs_side_by_side(logs, capsys):
    command = ["report", str(logs / "a.log"), "--compare", str(logs / "b.log")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "nats per answer         25 to 25" in shown
    assert "! The averages differ or are open" in shown
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][-1] == ["wrong", "–", "infinite"]
    assert main([*command, "--fail-on", "wrong"]) == 1


@pytest.mark.parametrize(("name", "condition", "status"), DATA["in_continuous_integration"])
def test_in_continuous_integration(name, condition, status, logs, capsys):
    assert main(["report", str(logs / f"{name}.log"), "--fail-on", condition]) == status
    assert ("--fail-on is 'x', expected wrong, attention, or a topic" in capsys.readouterr().err) == (
        status == 2
    )


def test_the_metrics_and_standard_input(monkeypatch, capsys):
    assert main(["report", "--show-metrics", "ppo_kl", "slime"]) == 0
    assert capsys.readouterr().out.startswith("slime (all)  ppo_kl: K1, old/new")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ROWS.encode())))
    assert main(["report", "-"]) == 0
    assert "one row" in capsys.readouterr().out


def test_a_page_of_every_log_and_of_two(logs, capsys):
    out = logs / "page.html"
    assert main(["report", str(logs / "a.log"), "--output", str(out)]) == 0
    assert "kl: 0.25 nats per token, 25 nats per answer" in out.read_text(encoding="utf-8")
    assert capsys.readouterr().out.splitlines()[-1] == f"The page: {out}"
    command = ["report", str(logs / "a.log"), "--compare", str(logs / "b.log"), "--output", str(out)]
    assert main(command) == 0
    page = out.read_text(encoding="utf-8")
    assert "a.log and b.log" in page
    assert page.count("<figure>") == 1


def test_numbers_that_cannot_be(logs, capsys):
    assert main(["report", str(logs / "a.log"), "--answers", "-1"]) == 2
    assert "--answers is -1.0, expected a number from 0" in capsys.readouterr().err
