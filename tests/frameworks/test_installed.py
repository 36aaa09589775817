"""Finding frameworks, loading single functions out of their files, and what is said when they are missing."""

import hashlib
import inspect
import traceback

import pytest

from kl_companion.cli import main
from kl_companion.frameworks import Unavailable, framework, installed, matching, printing, setting
from kl_companion.frameworks.installed import Distribution, SourceLocation, digest_of, find, line_of, load
from tests.support.data import data
from tests.support.frameworks.planted import files, plant

DATA = data(__file__)


PLANTED = files("planted 9.9")["planted/losses.py"]


@pytest.fixture
def planted(tmp_path):
    return plant(tmp_path, "planted 9.9")


def install(folder, name, version):
    """A distribution as an installer leaves it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_function_is_loaded_without_its_decorators_annotations_and_imports(planted):
    import torch

    found = load(planted, "planted/losses.py", "LIMIT", "clamped", given={"helper": lambda x: x})
    assert found["LIMIT"] == 3.0
    assert found["clamped"](torch.tensor([1.0, 2.0])).tolist() == [2.0, 3.0]
    assert found["clamped"](torch.tensor([1.0, 2.0]), by=2.5).tolist() == [2.0, 2.5]
    assert set(found) == {"LIMIT", "clamped"}


def test_static_methods_stay_static_and_what_is_given_is_not_imported(planted):
    assert load(planted, "methods.py", "Clamp")["Clamp"](3)(5) == 3

    given = {"another": lambda x: x + 1, "warn": None}
    with pytest.raises(StopIteration) as caught:
        load(planted, "methods.py", "asked", given=given)["asked"](2).send(None)
    assert caught.value.value == 3
    with pytest.raises(ModuleNotFoundError, match="package_that_nobody_has"):
        load(planted, "methods.py", "asked", given={"warn": None})["asked"](2).send(None)


def test_the_place_of_another_framework_is_looked_for_there(tmp_path, monkeypatch):
    place, of_trl = SourceLocation("trl/trainer/grpo_trainer.py", "GRPOTrainer"), framework("trl").versions
    there = place._replace(distribution="trl", versions=of_trl)
    assert framework("unsloth").located(there) == framework("trl").located(place)
    with pytest.raises(Unavailable, match=r"unsloth_zoo .* has no file trl/"):
        framework("unsloth").located(place)
    monkeypatch.setattr(installed, "paths", lambda: [str(tmp_path)])
    assert framework("unsloth").located(there) == "trl/trainer/grpo_trainer.py, GRPOTrainer"


def test_what_runs_names_its_file_and_its_line(planted):
    path = planted.root / "planted" / "losses.py"
    wanted = PLANTED.splitlines().index("def fails():") + 1
    assert line_of(planted, SourceLocation("planted/losses.py", "fails")) == wanted
    inside = PLANTED.splitlines().index("    def loss(self):") + 1
    assert line_of(planted, SourceLocation("planted/losses.py", "Trainer.loss")) == inside
    fails = load(planted, "planted/losses.py", "fails")["fails"]
    assert inspect.getsourcefile(fails) == str(path)
    with pytest.raises(RuntimeError) as caught:
        fails()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(path), wanted + 1)


def test_the_line_of_an_installed_function_is_where_it_is_defined():
    known = framework("verl")
    place = SourceLocation("verl/trainer/ppo/core_algos.py", "kl_penalty")
    found = find("verl", known.versions)
    lines = (found.root / place.file).read_text().splitlines()
    assert lines[line_of(found, place) - 1].startswith("def kl_penalty(")
    assert setting("verl.loss_k3").where == f"{place.file}:{line_of(found, place)}, kl_penalty"


def test_the_digest_is_that_of_the_file(planted):
    by_hand = hashlib.sha256(PLANTED.encode()).hexdigest()
    assert digest_of(planted, SourceLocation("planted/losses.py", "fails")) == by_hand[:16]
    with pytest.raises(Unavailable, match=r"planted 9\.9 has no file planted/other\.py"):
        digest_of(planted, SourceLocation("planted/other.py", "fails"))


@pytest.mark.parametrize(("file", "name", "message"), DATA["what_is_not_in_the_file_is_named"])
def test_what_is_not_in_the_file_is_named(planted, file, name, message):
    with pytest.raises(Unavailable, match=message):
        line_of(planted, SourceLocation(file, name))


@pytest.mark.parametrize(
    ("name", "how"), [("trl", r"kl-companion\[trl\]"), ("verl", "--target .audit -r requirements-audit.lock")]
)
def test_a_framework_that_is_missing_says_what_to_install(name, how, tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "paths", lambda: [str(tmp_path)])
    versions = framework(name).versions
    with pytest.raises(Unavailable, match=how) as caught:
        find(name, versions)
    assert f"{name} is not installed (known to work: {versions[0]})" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert framework(name).status == "not installed"


def test_another_version_is_refused_with_those_that_work(tmp_path, monkeypatch):
    install(tmp_path, "verl", "0.99.0")
    monkeypatch.setattr(installed, "paths", lambda: [str(tmp_path)])
    with pytest.raises(Unavailable, match=r"installed in version 0\.99\.0") as caught:
        find("verl", ("0.9.1", "0.9.2"))
    assert "known to work: 0.9.1, 0.9.2" in str(caught.value)
    assert framework("verl").status == "installed in the unknown version 0.99.0"
    install(tmp_path, "openrlhf", "0.11.2")
    assert find("openrlhf", ("0.11.2",)) == Distribution("openrlhf", "0.11.2", tmp_path)


def test_a_missing_framework_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    several = (*matching("verl.loss_k1"), setting("slime.opd"))
    monkeypatch.setattr(printing, "settings", lambda: several)
    monkeypatch.setattr(installed, "paths", lambda: [str(tmp_path)])
    assert main(["audit", "frameworks", "--scale", "1", "--off-policy"]) == 0
    said = capsys.readouterr()
    assert said.err.count("verl is not installed") == 1
    assert "requirements-audit.lock" in said.err
    assert "slime.opd minimizes" in said.out
    assert "verl" not in said.out
    assert main(["audit", "verl.loss_k3_token_sum"]) == 2
    assert "verl is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), DATA["bad_input_on_the_command_line"])
def test_bad_input_on_the_command_line(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_unknown_names():
    with pytest.raises(ValueError, match=r"unknown framework 'trlx'\. Did you mean 'trl'"):
        framework("trlx")
    with pytest.raises(ValueError, match=r"unknown setting 'slime\.loss_k4'\. Did you mean 'slime\.loss_k"):
        setting("slime.loss_k4")
    with pytest.raises(ValueError, match="unknown setting 'k3'"):
        setting("k3")
