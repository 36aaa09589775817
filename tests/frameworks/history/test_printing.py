"""Past releases on the command line, on planted releases and on the findings as they are committed."""

import re
from functools import partial

import pytest

from kl_companion.cli import main
from kl_companion.frameworks.history import audits, printing, reports, subjects
from kl_companion.frameworks.history import found as findings
from kl_companion.frameworks.history.subjects import PAST, PROJECTS
from tests.frameworks.history import planted


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A project of twelve planted releases, and an empty file of findings."""
    monkeypatch.setattr(subjects, "project", lambda name: planted.PROJECT)
    monkeypatch.setattr(printing, "project", lambda name: planted.PROJECT)
    monkeypatch.setattr(printing, "published", lambda name: planted.VERSIONS)
    monkeypatch.setattr(printing, "fetch", lambda name, version: planted.unpacked(tmp_path, version))
    monkeypatch.setattr(printing, "release", lambda name, version: planted.unpacked(tmp_path, version))
    file = tmp_path / "found.csv"
    file.write_text(findings.FILE.read_text().splitlines()[0] + "\n")
    monkeypatch.setattr(printing, "found", lambda name: findings.found(name, file))
    monkeypatch.setattr(printing, "write", lambda name, entries: findings.write(name, entries, file))
    return file


def test_a_release_is_audited_with_its_defaults(toy, capsys):
    command = ["audit", "toy.kl", "--release", "0.3", "--scale", "1", "--quiet"]
    assert main([*command, "--want", "forward_kl"]) == 0
    said = capsys.readouterr().out
    assert "toy.kl minimizes forward KL, next token" in said
    assert "  release: toy 0.3\n  option: Config(beta=0.04)\n  beta as shipped: 0.04\n" in said
    assert "  where: toy/loss.py:1, kl_term" in said
    assert main([*command, "--want", "reverse_kl"]) == 1


def test_options_of_the_command_line_reach_the_release(toy, capsys):
    command = ["audit", "toy.kl", "--release", "0.3", "--scale", "1", "--quiet", "--set"]
    assert main([*command, "beta=0"]) == 0
    assert "beta as shipped: 0 (off)" in capsys.readouterr().out
    assert main([*command, "bet=0"]) == 2
    assert "unknown option of Config of toy 0.3 'bet'. Did you mean 'beta'?" in capsys.readouterr().err
    assert main(["audit", "toy.kl", "--release", "0.3", "--level", "token"]) == 2
    assert "--release got --level" in capsys.readouterr().err


def test_an_update_keeps_what_it_finds_and_says_what_moved(toy, capsys, monkeypatch):
    monkeypatch.setattr(planted, "PROJECT", planted.PROJECT._replace(first="1.0"))
    assert main(["frameworks", "update", "toy", "--quiet"]) == 1
    said = capsys.readouterr().out
    assert "toy: 2 findings more, 2 in all" in said
    assert re.search(r"toy\.kl changed in 1\.1 .*; in 1\.0:", said)
    assert "fresh samples: reverse KL, next token" in said
    assert "off until you turn it on" in said
    assert main(["frameworks", "update", "toy", "--quiet"]) == 0
    assert capsys.readouterr().out == "toy: 0 findings more, 2 in all, in found.csv\n"
    assert main(["frameworks", "history", "toy"]) == 0
    assert capsys.readouterr().out.count("fresh samples") == 2


def test_an_update_reports_what_is_new_or_moved_and_names_the_rest(toy, capsys, monkeypatch):
    for module in (audits, reports):  # one size of log-ratios
        monkeypatch.setattr(module, "audit_shipped", partial(audits.audit_shipped, scale=1.0))

    def updated(last):
        known = planted.VERSIONS[: planted.VERSIONS.index(last) + 1]
        monkeypatch.setattr(printing, "published", lambda name: known)
        return main(["frameworks", "update", "toy", "--quiet"]), capsys.readouterr().out

    title = "# Gradient of the forward KL, not of the reverse KL: the KL term of toy (toy {})"
    as_before = (
        "not what they are named for, as before: toy.kl; their reports: kl-companion frameworks report toy"
    )
    status, said = updated("0.3")
    assert (status, title.format("0.3") in said, as_before in said) == (0, True, False)
    status, said = updated("0.3.1")
    assert (status, "# " in said, said.splitlines()[-1]) == (0, False, as_before)
    status, said = updated("0.4.2")
    assert (status, "# " in said, as_before in said) == (1, False, False)
    assert "toy.kl changed in 0.4.2" in said


def test_a_report_is_printed_again(toy, capsys, monkeypatch):
    monkeypatch.setattr(reports, "audit_shipped", partial(audits.audit_shipped, scale=1.0))
    assert main(["frameworks", "report", "toy", "--quiet"]) == 2
    assert "nothing is known of toy's releases yet" in capsys.readouterr().err
    assert main(["frameworks", "report", "toy", "--quiet", "--release", "0.3"]) == 0
    assert capsys.readouterr().out.startswith("# Gradient of the forward KL, not of the reverse KL: ")
    assert main(["frameworks", "report", "toy", "--quiet", "--release", "1.1"]) == 0
    assert capsys.readouterr().out == "toy 1.1: what it is named for is minimized by toy.kl\n"
    assert main(["frameworks", "history", "toy", "--release", "1.1"]) == 2
    assert "history got --release 1.1, expected none" in capsys.readouterr().err


def test_releases_are_fetched_by_name_and_unknown_ones_refused(toy, capsys):
    assert main(["frameworks", "fetch", "toy", "0.3", "--quiet"]) == 0
    assert capsys.readouterr().out.strip().endswith("toy-0.3")
    assert main(["frameworks", "fetch", "toy", "0.7", "--quiet"]) == 2
    assert "toy has no release 0.7, expected one of 0.1, 0.2" in capsys.readouterr().err
    assert main(["frameworks", "history", "toy", "0.3"]) == 2
    assert "history got releases 0.3, expected none" in capsys.readouterr().err


def test_a_project_without_findings_names_the_command(toy, capsys):
    assert main(["frameworks", "history", "toy"]) == 2
    assert "kl-companion frameworks fetch toy" in capsys.readouterr().err


@pytest.mark.parametrize("name", PROJECTS)
def test_every_project_has_a_history_to_read(name, capsys):
    assert main(["frameworks", "history", name]) == 0
    short = capsys.readouterr().out
    assert main(["frameworks", "history", name, "--all"]) == 0
    whole = capsys.readouterr().out
    fewer, more = (text.count("fresh samples") for text in (short, whole))
    assert 0 < fewer < more if name in PAST else 0 < fewer <= more
    assert max(map(len, whole.splitlines())) <= 100


def test_an_unknown_project_is_refused(capsys):
    assert main(["frameworks", "history", "trll"]) == 2
    assert "Did you mean 'trl'?" in capsys.readouterr().err
