"""`kl-companion audit --update`: the verdict on a whole update, and what it refuses."""

import inspect
import json

import pytest

from kl_companion.auditing.updates import audit
from kl_companion.cli import main
from tests.support.data import data
from tests.support.steps import kl_in_reward, rloo

DATA = data(__file__)


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """A reader's file with two steps, which are looked at on three prompts: half right, graded and equal."""
    monkeypatch.setattr(audit, "SUCCESS", (0.5,))
    path = tmp_path / "steps.py"
    path.write_text("\n\n".join(inspect.getsource(x) for x in (rloo, kl_in_reward)))
    return path


def test_a_step_that_is_not_what_was_wanted(steps, capsys):
    wanted = ["--want", "E[R] - beta * sequence_reverse_kl", "--quiet"]
    assert main(["audit", f"{steps}:kl_in_reward", "--update", "--set", "kl_coef=0.5", *wanted]) == 1
    out = capsys.readouterr().out
    assert "Effective beta, in units of beta = 0.5, by the share of right answers:" in out
    assert "beta has no effect" in out


def test_as_data_with_advantages_that_are_made_before(steps, capsys):
    wanted = ["--want", "E[R] - 0.1 * sequence_reverse_kl"]
    options = ["--advantage", "none", "--json", "--quiet", *wanted]
    assert main(["audit", f"{steps}:rloo", *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["audit"], data["advantage"], data["headline"]) == ("update", "none", "beta as written")
    assert data["met"] is True


@pytest.mark.parametrize(("arguments", "said"), DATA["what_is_refused"])
@pytest.mark.usefixtures("as_installed")
def test_what_is_refused(arguments, said, steps, capsys):
    assert main(["audit", *(x.format(steps=steps) for x in arguments), "--quiet"]) == 2
    assert said in capsys.readouterr().err
