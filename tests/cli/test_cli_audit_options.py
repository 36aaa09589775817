"""Every option of the verb audit, alone and beside every other: it reaches what is called, or is refused."""

import contextlib
import itertools

import pytest

from kl_companion import auditing
from kl_companion.auditing.updates import audit as updates
from kl_companion.cli import audit as verb
from kl_companion.cli import main
from kl_companion.frameworks import printing
from kl_companion.frameworks.history import printing as history

# Of every option: what is typed, and what has to arrive, {keyword: value}.
OPTIONS = {
    "--want": (["reverse_kl"], {"want": "reverse_kl"}),
    "--placement": (["reward"], {"placement": "reward"}),
    "--level": (["token"], {"level": "token"}),
    "--group-size": (["4"], {"group_size": 4}),
    "--map": (["x=logp"], {"roles": {"x": "logp"}}),
    "--set": (["beta=0.5"], {"options": {"beta": 0.5}}),
    "--off-policy": ([], {"off_policy": True}),
    "--scale": (["2"], {"scale": 2.0}),
    "--update": ([], {}),
    "--advantage": (["mean"], {"advantage": "mean"}),
    "--details": ([], {"details": True}),
    "--json": ([], {"json": True}),
    "--timeout": (["5"], {"seconds": 5.0}),
}
LOSS = {"--want", "--placement", "--level", "--group-size", "--map", "--set", "--off-policy", "--scale"}
UPDATE = {"--want", "--group-size", "--map", "--set", "--update", "--advantage"}
PRINTED = {"--details", "--json"}
GUARDED = {"--timeout"}
# Of everything that can be asked about: what is typed, and the options that have an effect.
TAKEN = {
    "estimator": (["k3"], LOSS - {"--map", "--set"} | PRINTED),
    "function": (["{file}:f"], LOSS | PRINTED | GUARDED),
    "only function": (["{file}"], LOSS | PRINTED | GUARDED),
    "update": (["{file}:f", "--update"], UPDATE | PRINTED | GUARDED),
    "update with advantages": (["{file}:f", "--advantage", "mean"], UPDATE | PRINTED | GUARDED),
    "framework": (["trl.grpo"], {"--want", "--off-policy", "--scale"}),
    "release": (["trl.grpo", "--release", "0.14.0"], {"--want", "--set", "--off-policy", "--scale"}),
}


class Told:
    """A verdict that writes down how it was printed."""

    met, sentence = None, ""

    def __init__(self, arrived):
        self.arrived = arrived

    def blocks(self, *, details=False):
        self.arrived["details"] = details
        return []

    def to_dict(self):
        self.arrived["json"] = True
        return {}


@pytest.fixture
def arrived(tmp_path, monkeypatch):
    """Keywords with which the package is called, and nothing is computed."""
    found = {}

    def told(*args, **given):
        found.update(given)
        return Told(found)

    def printed(*args, **given):
        found.update(given | ({"options": args[2]} if len(args) > 2 else {}))
        return 0

    @contextlib.contextmanager
    def limited(seconds, file):
        found["seconds"] = seconds
        yield

    monkeypatch.setattr(verb, "time_limit", limited)
    monkeypatch.setattr(auditing, "audit", told)
    monkeypatch.setattr(updates, "audit_update", told)
    monkeypatch.setattr(printing, "print_audits", printed)
    monkeypatch.setattr(history, "print_release", printed)
    (tmp_path / "mine.py").write_text("def f(logp, ref_logp):\n    return logp - ref_logp\n")
    found["file"] = tmp_path / "mine.py"
    return found


def asked(kind, names, arrived, capsys):
    words = [x.format(file=arrived["file"]) for x in TAKEN[kind][0]]
    for name in names:
        words += [] if name in words else [name, *OPTIONS[name][0]]
    status = main(["audit", *words, "--quiet"])
    return status, capsys.readouterr().err


def effective(kind, names):
    """Whether every option has an effect: --update and --advantage make another thing of a function."""
    whole = {"--update", "--advantage"} & {*names}
    if kind.endswith("function") and whole:
        kind = "update"
    return {*names} <= TAKEN[kind][1] and not {*names} >= PRINTED


PAIRS = [*((x,) for x in OPTIONS), *itertools.combinations(OPTIONS, 2)]


@pytest.mark.parametrize("kind", TAKEN)
def test_every_pair_of_options_arrives_or_is_refused(kind, arrived, capsys):
    for names in PAIRS:
        file = arrived["file"]
        arrived.clear()
        arrived["file"] = file
        status, said = asked(kind, names, arrived, capsys)
        if not effective(kind, names):
            assert status == 2, names
            assert any(name in said for name in names), (names, said)
            assert "expected none of them" in said
            continue
        assert status == 0, (names, said)
        wanted = {key: value for name in names for key, value in OPTIONS[name][1].items()}
        assert wanted.items() <= arrived.items(), names


def test_the_table_has_every_option():
    from argparse import ArgumentParser

    from kl_companion.cli.audit import add_arguments

    parser = ArgumentParser()
    add_arguments(parser)
    known = {x for action in parser._actions for x in action.option_strings if x.startswith("--")}
    assert known == {*OPTIONS, "--help", "--quiet", "--release"}
