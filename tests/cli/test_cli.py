"""The command line, as a reader types it."""

import gc
import io
import json
import subprocess
import sys
import textwrap

import pytest

from kl_companion.auditing.reading.sources import value_of
from kl_companion.cli import main
from kl_companion.cli.audit import colored
from tests.support.data import data
from tests.support.warm import command

DATA = data(__file__)
K3_AS_REVERSE_KL = """
import torch

def kl_penalty(logp, ref_logp):
    log_w = ref_logp - logp
    return 0.04 * (torch.exp(log_w) - 1 - log_w)
"""


@pytest.fixture
def planted(tmp_path):
    path = tmp_path / "trainer_loss.py"
    path.write_text(K3_AS_REVERSE_KL)
    return path


def test_a_planted_mistake_is_named_and_its_remedy_passes_the_same_audit(planted, tmp_path, capsys):
    assert main(["audit", f"{planted}:kl_penalty", "--want", "reverse_kl"]) == 1
    out = capsys.readouterr().out
    assert "kl_penalty minimizes 0.04 x forward KL, next token." in out
    assert "That is not what was wanted (reverse_kl)." in out
    kept, instead = out.split("Instead:\n")
    assert "stale samples" in kept
    lines = [line[2:] for line in instead.splitlines() if not line.startswith("  - ")]
    fixed = tmp_path / "fixed.py"
    fixed.write_text("\n".join(line.replace("+ ", "", 1) for line in lines))
    assert main(["audit", f"{fixed}:kl_penalty", "--want", "reverse_kl"]) == 0
    assert "That is what was wanted (reverse_kl)." in capsys.readouterr().out
    assert main(["audit", f"{fixed}:kl_penalty", "--want", "reverse_kl", "--off-policy"]) == 1
    assert main(["audit", "k2", "--want", "reverse_kl", "--off-policy"]) == 1
    _, remedy = capsys.readouterr().out.rsplit("Instead:\n", 1)
    fixed.write_text(textwrap.dedent(remedy))
    assert main(["audit", f"{fixed}:remedy", "--want", "reverse_kl", "--off-policy"]) == 0


OPTIONS = """
def mine(x_logps, ref_logps, mask, kl_type, scale=2.0):
    kl = {"k1": x_logps - ref_logps, "k2": (x_logps - ref_logps) ** 2 / 2}[kl_type]
    return scale * (kl * mask).sum() / mask.sum()
"""
MAPPED = ["--map", "x_logps=logp", "--set", "kl_type=k2", "--scale", "1", "--quiet"]


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (MAPPED, 0, "mine minimizes [2 x reverse KL, next token] / mean answer length."),
        ([*MAPPED, "--set", "scale=0.5"], 0, "mine minimizes [0.5 x reverse KL, next token] / mean"),
        ([*MAPPED, "--want", "reverse_kl"], 0, "That is what was wanted (reverse_kl)."),
        ([*MAPPED, "--want", "forward_kl"], 1, "That is not what was wanted (forward_kl)."),
        ([*MAPPED, "--details"], 0, "x_logps: logp, log-probs of the current policy, one per sampled token;"),
        ([*MAPPED, "--set", "scal=0.5"], 2, "Did you mean 'scale'?"),
        ([*MAPPED, "--map", "mask"], 2, "--map got 'mask', expected --map NAME=VALUE"),
        (MAPPED[2:], 2, "--map x_logps="),
    ],
)  # fmt: skip
def test_a_map_options_and_exit_codes(options, exit_code, said, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(OPTIONS)
    assert main(["audit", f"{path}:mine", *options]) == exit_code
    captured = capsys.readouterr()
    assert said in " ".join((captured.err if exit_code == 2 else captured.out).split())
    assert (captured.out == "") is (exit_code == 2)


def test_an_audit_as_data(capsys):
    assert main(["audit", "k3", "--scale", "1", "--want", "reverse_kl", "--json", "--quiet"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["headline"], found["met"]) == ("forward KL", False)


@pytest.mark.parametrize(
    ("terminal", "environment", "wanted"), DATA["color_is_for_a_terminal_whose_reader_wants_it"]
)
def test_color_is_for_a_terminal_whose_reader_wants_it(terminal, environment, wanted, monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    assert colored(stream) is wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5", 0.5), ("true", True), ("None", None), ("[1, 2]", [1, 2]), ("k2", "k2"), ("a b", "a b")],
)
def test_values_of_options(text, value):
    assert value_of(text) == value


def test_audit_of_a_name_exits_0_whatever_the_verdict(capsys):
    assert main(["audit", "k1", "--scale", "1"]) == 0
    assert gc.isenabled()
    assert "nothing: its expected gradient is zero" in capsys.readouterr().out
    assert (
        main(["audit", "k1", "--scale", "1", "--placement", "reward", "--want", "sequence_reverse_kl"]) == 0
    )


@pytest.mark.parametrize(("arguments", "message"), DATA["refused"])
def test_what_cannot_run_exits_2_with_a_reason(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(("source", "name", "message"), DATA["files"])
def test_a_file_that_cannot_be_audited_exits_2(source, name, message, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert main(["audit", f"{path}:{name}", "--scale", "1"]) == 2
    assert message in capsys.readouterr().err


def test_a_file_may_hold_dataclasses_and_import_its_neighbors(tmp_path, capsys):
    (tmp_path / "neighbor.py").write_text("beta = 0.5\n")
    path = tmp_path / "torch.py"  # a name that must hide nothing
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from neighbor import beta\n"
        "@dataclass\nclass Config:\n    beta: float = beta\n"
        "def mine(logp, ref_logp):\n    return Config().beta * (logp - ref_logp) ** 2\n"
    )
    assert main(["audit", f"{path}:mine", "--scale", "1", "--want", "token_reverse_kl"]) == 0
    assert "mine minimizes reverse KL, next token." in capsys.readouterr().out


def test_derive_prints_what_a_head_and_a_tail_leave_behind(capsys):
    def cells(name):
        assert main(["derive", name]) == 0
        return dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())

    def left(name):
        return {k: v.strip() for k, v in cells(name).items() if k.startswith("left")}

    rest = "0 x (P(S) - Q(S))"
    assert left("top_k_reverse_kl(4)") == {"left in the value": rest, "left in the gradient": "0 x grad P(S)"}
    assert left("top_k_reverse_kl(4, published)")["left in the gradient"] == "1 x grad P(S)"
    assert left("top_k_forward_kl(4, published)")["left in the gradient"] == "-1 x grad P(S)"
    assert cells("top_k_reverse_kl(4, generic)")["head, per P"].strip() == "-log(w)"
    assert "missing" in cells("truncated_kl(4)")["tail"]
    assert main(["derive", "top_k_f_divergence(pearson, 4)", "--latex"]) == 0
    assert r"\frac{1}{w}" in capsys.readouterr().out


def test_derive_prints_the_derivation(capsys):
    assert main(["derive", "k3", "--placement", "reward"]) == 0
    out = capsys.readouterr().out
    assert "(t - 1)/t**2" in out
    assert "1 x reverse_kl - 1 x forward_kl" in out
    assert main(["derive", "k2", "--latex"]) == 0
    assert r"\log" in capsys.readouterr().out
    assert main(["derive", "k1"]) == 0
    assert "zero" in capsys.readouterr().out
    assert main(["derive", "k2", "--placement", "reward"]) == 0
    assert "no sum of two registered divergences" in capsys.readouterr().out


@pytest.mark.parametrize(("topic", "line"), DATA["list"])
def test_list(topic, line, capsys):
    assert main(["list", topic]) == 0
    assert line in capsys.readouterr().out


def test_the_console_script_is_installed():
    done = subprocess.run([*command(), "-m", "kl_companion.cli", "list"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "k_lambda(0.5)" in done.stdout


def test_progress_is_silent_for_two_seconds(monkeypatch, capsys):
    from kl_companion.cli import printing

    now = [0.0]
    monkeypatch.setattr(printing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tell = printing.progress()
    tell("early")
    now[0] = 2.5
    tell("late")
    assert capsys.readouterr().err == "  late\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)  # of a log file
    printing.progress()("later")
    assert capsys.readouterr().err == ""


VERBS = DATA["verbs"]


def test_a_verb_loads_only_what_it_uses():
    """Each in a fork of a process that has torch and nothing of the package."""
    code = f"""
import os, sys, torch
for arguments, absent in {VERBS}:
    assert "sympy" not in sys.modules and "kl_companion" not in sys.modules
    if os.fork() == 0:
        if arguments[0] == "table":
            from kl_book.__main__ import main
        else:
            from kl_companion.cli import main
        status = main(arguments)
        print("loaded:", arguments[0], status, [name for name in absent if name in sys.modules], flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("loaded: ")]
    assert found == [f"loaded: {arguments[0]} 0 []" for arguments, _ in VERBS], done.stderr
