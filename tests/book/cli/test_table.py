"""`python -m kl_book table`: what cannot run says why."""

import pytest

from kl_book.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "got no name"),
        (["run", "estimator_value"], "Did you mean 'estimator_values'"),
        (["show", "estimator_value"], "Did you mean 'estimator_values'"),
    ],
)
def test_what_cannot_run_exits_2_with_a_reason(arguments, message, capsys):
    assert main(["table", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("kl_book: ")
    assert message in said.err


def test_the_tables_are_listed(capsys):
    assert main(["list", "tables"]) == 0
    assert "value_mse" in capsys.readouterr().out.split()


def test_all_tables_show_three_changed_files_and_one_table_shows_every_one(capsys, monkeypatch):
    changed = [f"kl_companion/{name}.py" for name in "abcde"]
    monkeypatch.setattr("kl_book.tables.check", lambda *_: [])
    monkeypatch.setattr("kl_book.tables.drift", lambda _: changed)
    assert main(["table", "check"]) == 0
    three = "other code than made it: kl_companion/a.py, kl_companion/b.py, kl_companion/c.py and 2 more\n"
    assert f"value_mse: {three}" in capsys.readouterr().out
    assert main(["table", "check", "value_mse"]) == 0
    assert f"value_mse: other code than made it: {', '.join(changed)}\n" in capsys.readouterr().out
