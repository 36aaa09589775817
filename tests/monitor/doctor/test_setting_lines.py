"""The line of a user's script that sets something."""

import sys

import pytest

from kl_companion.monitor.doctor.setting_lines import setting_line
from tests.support.data import data

DATA = data(__file__)


SCRIPT = """
from common import Config
first = Config(beta=0.1)
second = Config(
    beta=0.2,
    generation_kwargs={"min_p": 0.3},
)
second.top_p = 0.4
third = Config(top_p=variable)
settings["top_k"] = 5
trainer.teacher.model = model
trainer.ref_model.train()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(path)])
    return path


@pytest.mark.parametrize(("name", "value", "line"), DATA["where_a_setting_is"])
def test_where_a_setting_is(script, name, value, line):
    found = setting_line(name, value)
    assert (found.file, found.number) == (str(script), line)


def test_a_name_that_is_nowhere(script):
    assert setting_line("nowhere_" + "at_all") is None
    assert setting_line("beta", 0.3) is None
    script.write_text("def broken(:", encoding="utf-8")
    assert setting_line("top_" + "qq") is None
