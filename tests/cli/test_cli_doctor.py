"""`kl-companion doctor`: steps, trainers and whole training scripts, and what is said of those that fail."""

import argparse
import json
import sys

import pytest

from kl_companion.cli import doctor, main
from kl_companion.monitor.doctor import Diagnosis, DoctorFinding
from tests.support.data import data

DATA = data(__file__)
STEPS, SCRIPT = DATA["steps"], DATA["script"]


@pytest.fixture
def steps(tmp_path):
    """A reader's file."""
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return path


@pytest.fixture
def script(tmp_path):
    """A reader's training script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_step_that_is_sound(steps, capsys):
    assert main(["doctor", f"{steps}:sound", "--quick"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("sound: nothing is wrong.\n")
    assert "The KL of a token is K2, in the loss." in printed.out
    assert f"executing {steps}, as python does with a file of yours" in printed.err


def test_a_step_with_a_mistake_its_line_and_what_to_write(steps, capsys):
    assert main(["doctor", f"{steps}:unmasked", "--quick", "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("unmasked: 1 mistake.\n")
    assert (
        "at steps.py:29: return terms(model, ref_model, batch).sum(-1).mean()  # the mistake" in printed.out
    )
    assert "-> multiply by the completion mask before the sum" in printed.out
    assert printed.err == ""


def test_as_data(steps, capsys):
    assert main(["doctor", f"{steps}:unmasked", "--quick", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["title"], data["healthy"], data["update"]) == ("unmasked", False, None)
    (wrong,) = [f for f in data["findings"] if f["level"] == "wrong"]
    assert wrong["fault"] == "no-mask"
    assert wrong["line"].startswith("steps.py:29: ")


@pytest.mark.parametrize(("name", "options", "fault"), DATA["said"])
def test_what_is_said_of_the_sampler_and_the_batch(name, options, fault, steps, capsys):
    status = main(["doctor", f"{steps}:{name}", "--quick", "--quiet", "--json", *options])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [f["fault"] for f in findings if f["level"] == "wrong"] == ([fault] if fault else [])
    assert status == (1 if fault else 0)


def test_the_audit_of_the_update_is_asked_for_unless_quick(steps, monkeypatch):
    from kl_companion.monitor import doctor as room

    asked = []

    monkeypatch.setattr(room, "diagnose", lambda x, **options: asked.append(options) or Diagnosis("a", ()))
    assert main(["doctor", f"{steps}:sound"]) == 0
    assert main(["doctor", f"{steps}:sound", "--quick"]) == 0
    assert [options["update"] for options in asked] == [True, False]


@pytest.mark.parametrize(("levels", "status"), [(("fine",), 3), (("fine", "unchecked", "wrong"), 1)])
def test_an_update_that_cannot_be_audited_is_no_success(levels, status, steps, monkeypatch, capsys):
    from kl_companion.monitor import doctor as room

    findings = tuple(DoctorFinding("mask", level, "All count.", None, "nothing") for level in levels)
    found = Diagnosis("a", findings, None, "no rewards are read")
    monkeypatch.setattr(room, "diagnose", lambda x, **options: found)
    assert main(["doctor", f"{steps}:sound", "--json"]) == status
    data = json.loads(capsys.readouterr().out)
    assert (data["healthy"], data["unread"], data["status"]) == (False, "no rewards are read", status)


def test_a_check_that_could_not_be_made_is_no_success(steps, monkeypatch, capsys):
    from kl_companion.monitor import doctor as room

    findings = (DoctorFinding("mask", "fine", "All."), DoctorFinding("form", "unchecked", "Could not check."))
    monkeypatch.setattr(room, "diagnose", lambda x, **options: Diagnosis("a", findings))
    assert main(["doctor", f"{steps}:sound", "--quick"]) == 3
    assert capsys.readouterr().out.startswith("a: nothing is wrong; could not check: form.\n")


def test_a_training_script_is_executed_up_to_its_training(script, capsys):
    from transformers import Trainer

    stock, arguments, path = Trainer.train, sys.argv, sys.path[:]
    assert main(["doctor", str(script), "--quick", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("MyTrainer: nothing is wrong.\n")
    assert "trained" not in printed
    assert main(["doctor", str(script), "--quick", "--quiet", "--args", "--temperature 0.7"]) == 0
    assert "temperature 0.7." in capsys.readouterr().out
    assert (Trainer.train, sys.argv, sys.path) == (stock, arguments, path)


@pytest.mark.parametrize(("arguments", "said"), DATA["a_script_that_never_trains"])
def test_a_script_that_never_trains(arguments, said, script, capsys):
    from transformers import Trainer

    stock, before = Trainer.train, sys.argv
    assert main(["doctor", str(script), "--quick", "--quiet", f"--args={arguments}"]) == 2
    assert f"kl-companion: {script} {said}" in capsys.readouterr().err
    assert Trainer.train is stock
    assert sys.argv is before


def test_a_trainer_or_a_function_that_makes_one(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x"])  # the script reads its arguments when it is imported
    assert main(["doctor", f"{script}:make", "--quick", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("MyTrainer: nothing is wrong.")
    made = tmp_path / "made.py"
    made.write_text(SCRIPT.split("if __name__")[0] + "trainer = make()\n")
    assert main(["doctor", f"{made}:trainer", "--quick", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("MyTrainer: nothing is wrong.")


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("arguments", "said"), DATA["refused"])
def test_what_is_refused(arguments, said, steps, capsys):
    assert main(["doctor", *(x.format(steps=steps) for x in arguments), "--quick", "--quiet"]) == 2
    assert said.format(steps=steps) in capsys.readouterr().err


FILES = {
    "its only step": """
def logps(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
def step(model, batch):
    logits = model(batch["input_ids"], batch["attention_mask"]).logits
    terms = logps(logits[:, batch["prompt_length"] - 1 : -1], batch["completion_ids"])
    return -(terms * batch["advantages"][:, None] * batch["completion_mask"]).sum(-1).mean()
if __name__ == "__main__":
    raise RuntimeError("it trains")
""",
    "has several steps, expected one: kl-companion doctor {path}:a, kl-companion doctor {path}:b": (
        "def a(model, batch): pass\ndef b(policy, ref, batch): pass\n"
    ),
    "its function f may be a loss: kl-companion audit {path}:f": "def f(logp, ref_logp): pass\n",
    "failed with SyntaxError": "def a(model batch): pass\n",
    "expected a script that trains; or name its step: kl-companion doctor {path}:a": (
        "# no Trainer here\ndef a(model, batch): pass\n"
    ),
    "expected a script that trains": "x = 1\n",
    "has run for 0.5 s, at last at line 1: while True: pass": "while True: pass\n",
    "raised KeyError at {path}:2: 'mine'": "def a(model, batch):\n    raise KeyError('mine')\n",
}


@pytest.mark.parametrize("message", FILES)
def test_a_file_without_a_trainer(message, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(FILES[message])
    status = main(["doctor", str(path), "--quick", "--timeout", "0.5" if "0.5" in message else "60"])
    out, err = capsys.readouterr()
    assert (message.format(path=path) if status else f"{path}:step is examined") in err
    assert (status, out[:5]) == ((0, "step:") if message == "its only step" else (2, ""))


def test_what_a_script_prints_is_not_among_the_data(script, capsys):
    script.write_text(f"print('loading')\n{script.read_text()}")
    assert main(["doctor", str(script), "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["title"] == "MyTrainer"
    assert "loading" in err


def test_without_transformers(script, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["doctor", str(script), "--quick", "--quiet"]) == 2
    assert "examining a training script needs transformers" in capsys.readouterr().err


def test_every_option_has_a_help():
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert all(action.help for action in parser._actions if action.dest != "help")
    assert "examine only files that you trust" in parser.description
