"""Options that have no effect are refused; a closed pipe ends the command quietly."""

import subprocess
import sys

import pytest

from kl_companion.cli import main
from tests.support.data import data

DATA = data(__file__)


def refused(arguments, capsys):
    assert main([*arguments, "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize(("arguments", "options"), DATA["without_effect"])
@pytest.mark.usefixtures("as_installed")
def test_options_without_an_effect_are_refused(arguments, options, capsys):
    said = refused(arguments, capsys)
    assert "expected none" in said
    assert all(option in said for option in options)


def test_a_reader_that_has_read_enough():
    command = [sys.executable, "-m", "kl_companion.cli", "list", "divergences"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdout.close()
    said = run.stderr.read().decode()
    assert (run.wait(), said) == (141, "")
    run.stderr.close()
