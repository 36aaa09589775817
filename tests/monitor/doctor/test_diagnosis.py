"""`diagnose`: what is taken, what is printed and given as data, and what is refused."""

import json
from typing import ClassVar

import torch

import kl_companion.monitor.doctor as room
from kl_companion.llm.settings import Settings
from kl_companion.monitor.doctor import FAULTS, Diagnosis, DoctorFinding, Ids, diagnose
from kl_companion.monitor.doctor import diagnosis as module
from kl_companion.monitor.doctor.tracing import Line
from tests.support.small_steps import log_probs, step_of
from tests.support.stub_trainer import made

FINE = DoctorFinding("mask", "fine", "All count.", Line(__file__, 1), "nothing")
LOOK = DoctorFinding("clip", "attention", "It is clipped.", None, "do not clip", "clipped")
WRONG = DoctorFinding(
    "form", "wrong", "word " * 30 + "end.", Line("/x/site-packages/trl/a.py", 3), "exchange", "exchanged"
)


def test_what_is_printed():
    said = str(Diagnosis("step", (FINE, LOOK, WRONG)))
    assert said.splitlines() == [
        "step: 1 mistake; 1 thing to look at.",
        "",
        "   ok  All count.",
        " look  It is clipped.",
        "       -> do not clip",
        "WRONG  word word word word word word word word word word word word word word",
        "       word word word word word word word word word word word word word word",
        "       word word end.",
        "       at trl/a.py:3: ",
        "       -> exchange",
    ]
    assert max(map(len, said.splitlines())) <= 80


def test_the_result_in_one_sentence():
    assert Diagnosis("a", (FINE,)).headline == "a: nothing is wrong."
    assert Diagnosis("a", (LOOK, LOOK)).headline == "a: nothing is wrong; 2 things to look at."
    assert Diagnosis("a", (WRONG, WRONG)).headline == "a: 2 mistakes."
    assert Diagnosis("a", (FINE, LOOK)).healthy
    assert not Diagnosis("a", (WRONG,)).healthy
    assert Diagnosis("a", (FINE, WRONG)).wrong == (WRONG,)


class Card:
    """An audit."""

    def __str__(self):
        return "the card"

    def to_dict(self):
        return {"card": 1}


def test_with_the_audit_of_the_whole_update_or_why_there_is_none():
    with_card = Diagnosis("a", (FINE,), Card())
    assert str(with_card).endswith("   ok  All count.\n\nthe card")
    assert with_card.to_dict()["update"] == {"card": 1}
    without = Diagnosis("a", (FINE,), None, "no rewards")
    assert str(without).endswith("\n\nNo audit of the whole update: no rewards")
    assert without.headline == "a: nothing is wrong; the whole update could not be audited."
    assert not without.healthy
    assert (without.to_dict()["healthy"], without.to_dict()["unread"]) == (False, "no rewards")
    assert with_card.to_dict()["unread"] == ""


def test_as_data():
    data = Diagnosis("a", (FINE, WRONG)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["title"], data["healthy"], data["update"]) == ("a", False, None)
    assert data["findings"][1] == {
        "name": "form",
        "level": "wrong",
        "fault": "exchanged",
        "said": WRONG.said,
        "line": "trl/a.py:3: ",
        "instead": "exchange",
    }


def test_a_step_a_trainer_and_settings_are_taken():
    step = diagnose(step_of(), update=False)
    assert (step.title, step.healthy) == ("step", True)
    assert diagnose(made(), update=False).title == "Trainer"
    assert diagnose(Settings(beta=0.1), update=False).title == "the project's own loop"

    class Step:
        def __call__(self, model, batch):
            return log_probs(model, batch).sum()

    assert diagnose(Step(), update=False).title == "Step"


def test_what_is_declared_reaches_the_checks():
    step = step_of(policy=lambda logp, batch: -logp * batch["advantages"].unsqueeze(-1))

    def faults(**options):
        return [f.fault for f in diagnose(step, update=False, **options).wrong]

    assert faults() == []
    assert faults(temperature=0.7) == ["temperature"]
    assert faults(top_p=0.9) == ["truncated-sampler"]
    assert faults(top_k=5) == ["truncated-sampler"]
    assert faults(updates=2) == ["recomputed-old"]
    assert faults(accumulate=2, summed=True) == ["denominator"]


def test_old_log_probs_of_the_engine_correct_a_truncated_sampler():
    cut = {"top_p": 0.9, "update": False}
    assert [f.fault for f in diagnose(step_of(), **cut).wrong] == ["truncated-sampler"]
    assert diagnose(step_of(), engine=True, **cut).healthy


def test_options_of_a_step():
    module_of_theirs = torch.nn.Linear(1, 1)
    ids = Ids(pad=0, live=(2, 30, 31, 32), digits=(40, 41, 42))

    class Notes:  # a variable of the step is put back before each run, a class is not
        sizes: ClassVar[set] = set()

    def step(model, batch):
        Notes.sizes.add((batch["input_ids"].max().item(), batch["completion_mask"].shape[1]))
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        mine, theirs = (
            m(**given).logits[:, :-1].log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
            for m in (model, module_of_theirs)
        )
        return (0.1 * (mine - theirs.detach()) ** 2 * batch["completion_mask"]).sum(-1).mean()

    found = diagnose(step, reference=module_of_theirs, alignment="shifted", ids=ids, update=False)
    assert found.healthy, str(found)
    assert "measured to the reference" in str(found)
    assert Notes.sizes == {(42, 7), (42, 10)}  # and in a wider rectangle


def test_progress_and_an_update_that_cannot_be_audited(monkeypatch):
    said = []

    def audited(subject, progress):
        progress("auditing")
        raise ValueError("no rewards are read")

    monkeypatch.setattr(module, "audited", audited)
    found = diagnose(step_of(), progress=said.append)
    assert found.unread == "no rewards are read"
    assert found.update is None
    assert said[0] == "step: contexts"
    assert said[-1] == "auditing"
    monkeypatch.setattr(module, "audited", lambda subject, progress: Card())
    assert str(diagnose(step_of())).endswith("the card")
    assert diagnose(step_of(), update=False).update is None


def test_every_fault_that_is_named_is_known_and_the_room_is_lazy():
    assert {LOOK.fault, WRONG.fault} <= set(FAULTS)
    assert set(dir(room)) >= {"diagnose", "Diagnosis", "FAULTS", "DoctorFinding", "Ids"}
