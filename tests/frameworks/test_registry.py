"""Frameworks are found by their files, and what a file says is read."""

import re
import tomllib

import pytest

from kl_companion.frameworks import FRAMEWORKS, formulas, framework, registry, settings
from kl_companion.frameworks.adapter import functions_of
from kl_companion.frameworks.installed import FOLDER
from kl_companion.frameworks.records import Setting

KEYS = ("shipped", "terms", "ship", "with", "options", "ahead", "how", "each")
WRITTEN = {*Setting._fields, *KEYS} - {"beta", "framework"}


def test_a_file_of_the_folder_is_a_framework(tmp_path):
    for name in ("zeta.toml", "alpha.toml", "openrlhf.toml", "helper.py"):
        (tmp_path / name).write_text("")
    assert registry._adapters(tmp_path) == ("openrlhf", "alpha", "zeta")


def test_every_framework_is_named_as_its_file():
    assert [framework(name).name for name in FRAMEWORKS] == list(FRAMEWORKS)
    assert all(s.name.startswith(f"{name}.") for name in FRAMEWORKS for s in settings(name))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_all_that_a_file_says_is_used(name):
    """A key is one of a setting, an option of its function, or stands in a text; a function is called."""
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    for family in data["settings"]:
        for own in family.get("each", [{}]):
            row = {**data.get("common", {}), **family, **own}
            texts = [*row.values(), *row.get("options", {}).values()]
            filled = re.findall(r"{(\w+)}", " ".join(x for x in texts if isinstance(x, str)))
            assert set(row) - WRITTEN <= {*filled, *row.get("with", ())}, row["name"]
    if "heads" not in (shared := data.get("functions", ())) and "terms" not in shared:
        own = set(functions_of(name)) - set(formulas.__all__)
        assert own == {f for f in own if f'"{f}"' in text}
