"""`kl-companion report`: what it prints, where the page goes, and what it refuses."""

import json

import pytest

from kl_companion.cli import main
from tests.support import monitored_runs as runs


def test_a_page_beside_the_run_and_the_verdicts_in_the_terminal(tmp_path, capsys):
    folder = runs.troubled(tmp_path / "run", "bias")
    assert main(["report", str(folder)]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("attention: K2 overstates the KL by 40 %")
    assert last == f"The page: {folder / 'kl_report.html'}"
    page = (folder / "kl_report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "K2 overstates the KL by 40 %" in page


def test_a_healthy_run_says_so(tmp_path, capsys):
    folder = runs.write(tmp_path / "run", runs.healthy())
    out = tmp_path / "pages" / "mine.html"
    assert main(["report", str(folder), "--output", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("All is normal: KL 0.0")
    assert out.is_file()
    assert not (folder / "kl_report.html").exists()


def test_as_data(tmp_path, capsys):
    folder = runs.troubled(tmp_path / "run", "not_a_number")
    assert main(["report", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["level"], data["step"], data["observations"], data["cut"]) == ("wrong", 400, 40, False)
    assert data["headline"] == data["verdicts"][0]["says"] == "At step 130 the logged number is NaN."
    assert [v["topic"] for v in data["verdicts"]] == ["not_a_number", "size", "logged"]
    assert set(data["verdicts"][0]) == {"level", "topic", "says", "why", "todo", "step"}
    assert data["page"] is None
    assert not list(folder.glob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{folder}/nothing"], "has no kl_monitor.csv and no kl_monitor_tokens.jsonl"),
        (["{folder}", "--output", "{folder}"], "expected a file"),
        (["{folder}", "--outputs", "x"], "unknown option '--outputs'. Did you mean '--output'"),
    ],
)
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
