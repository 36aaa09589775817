"""A loss of which nothing is known because of its values."""

import io
import sys

import pytest

from kl_companion.cli import main
from tests.support.data import data

DATA = data(__file__)


HEAD = """
import random, torch
calls = []
def f(logp, ref_logp, mask):
    d = ref_logp - logp
    calls.append(1)
"""


@pytest.mark.parametrize(("result", "message"), DATA["what_it_is_refused_for"])
@pytest.mark.parametrize("pasted", [False, True])
def test_what_it_is_refused_for(tmp_path, monkeypatch, capsys, result, message, pasted):
    path, text = tmp_path / "mine.py", f"{HEAD}    return {result}\n"
    path.write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["audit", "-" if pasted else str(path), "--scale", "1", "--quiet"]) == 2
    assert message in capsys.readouterr().err


def test_a_loss_that_is_steady_has_a_card(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "    return (d.exp() * d.detach().abs().sqrt()).sum()\n")
    assert main(["audit", str(path), "--scale", "1", "--quiet"]) == 0
    assert "minimizes no objective that is known here" in capsys.readouterr().out
