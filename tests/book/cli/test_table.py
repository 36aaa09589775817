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
