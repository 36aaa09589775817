"""What is called a default is one: values in the installed files, and which settings are defaults."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from kl_companion.frameworks import settings
from kl_companion.frameworks.installed import find, known, statement
from kl_companion.frameworks.shipped import argument_defaults, class_defaults
from kl_companion.frameworks.yaml_defaults import yaml_defaults

DATA = tomllib.loads(Path(__file__).with_name("defaults.toml").read_text(encoding="utf-8"))
ENTRIES = [(kind, entry) for kind, entries in DATA.items() if kind != "texts" for entry in entries]


def parameters(distribution, file, name):
    """The literal defaults of a function's parameters."""
    spec = statement(distribution, file, name).args
    places = spec.args[-len(spec.defaults) :] if spec.defaults else []
    pairs = [*zip(places, spec.defaults, strict=True), *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
    return {a.arg: ast.literal_eval(v) for a, v in pairs if isinstance(v, ast.Constant)}


def in_file(distribution, file):
    return (argument_defaults if file.endswith(".py") else yaml_defaults)(distribution, file)


READ = {"classes": class_defaults, "functions": parameters, "files": in_file}


@pytest.mark.parametrize(("kind", "entry"), ENTRIES, ids=lambda x: x if isinstance(x, str) else x["file"])
def test_a_default_in_an_installed_file(kind, entry):
    named = (entry["name"],) if "name" in entry else ()
    found = READ[kind](find(*known(entry["framework"])), entry["file"], *named)
    wanted = {**entry.get("values", {}), **dict.fromkeys(entry.get("none", ()))}
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("entry", DATA["texts"], ids=lambda entry: entry["file"])
def test_lines_that_make_a_default(entry):
    text = (find(*known(entry["framework"])).root / entry["file"]).read_text(encoding="utf-8")
    for line in entry["lines"]:
        assert re.search(line, text), line


DEFAULTS = {
    "trl": "grpo rloo gkd_jensen_shannon distillation_reverse iw_opd sdpo sdft_jensen_shannon_top_2_no_tail",
    "miles": "loss_k1 opd",
    "rllm": "kl_beta_verl distill",
    "oat": "loss loss_grpo",
    "tunix": "grpo_kl grpo_kl_sequence_mean_token_scale ppo_low_var_kl logit_strategy",
}
BETAS = {
    "miles.opd": 0.0,
    "rllm.distill": None,
    "oat.loss": 0.1,
    "tunix.ppo_low_var_kl": 0.04,
    "trl.rloo": 0.05,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_which_settings_are_defaults(name):
    betas = {s.name: s.beta for s in settings(name) if s.default}
    assert set(betas) == {f"{name}.{setting}" for setting in DEFAULTS[name].split()}
    assert {n: b for n, b in BETAS.items() if n in betas}.items() <= betas.items()
