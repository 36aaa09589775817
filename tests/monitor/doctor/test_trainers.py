"""A trainer in the form of TRL's on the small world; what is TRL's own is tried in tests/frameworks."""

import copy
from types import SimpleNamespace

import pytest
import torch

from kl_companion.monitor.doctor import diagnose
from kl_companion.monitor.doctor.trainers import ExaminedTrainer, is_trainer
from kl_companion.monitor.doctor.world import REWARDS, world
from tests.support.small_steps import reinforce
from tests.support.stub_trainer import Model, Trainer, made


def formula(at, temperature=1.0, beta=0.5):
    """The loss and the gradient with the mean as a baseline."""
    return reinforce(at, at.rollout.rewards - at.rollout.rewards.mean(), beta, temperature)


@pytest.mark.parametrize("stale", [0.0, 0.1])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_run_is_the_formula_of_its_loss(stale, parts):
    subject = ExaminedTrainer(made(temperature=0.7))
    at = world(subject.ids, rewards=REWARDS, stale=stale)
    seen, (loss, gradient) = subject.run(at, parts=parts), formula(at, 0.7)
    torch.testing.assert_close(seen.completion, gradient, rtol=1e-5, atol=1e-7)
    assert seen.loss == pytest.approx(loss, rel=1e-5)
    assert (seen.prompt, seen.beyond, seen.stray, seen.reference) == (0, 0, 0, 0)


def test_another_coefficient_is_set_for_one_run():
    trainer = made()
    subject = ExaminedTrainer(trainer)
    at = world(subject.ids, rewards=REWARDS)
    torch.testing.assert_close(
        subject.run(at, beta=2.0).completion, formula(at, beta=2.0)[1], rtol=1e-5, atol=1e-7
    )
    assert trainer.beta == 0.5


def state(trainer):
    """All that a trainer is."""
    return {
        "attributes": {n: id(x) for n, x in vars(trainer).items() if n != "_metrics"},
        "metrics": copy.deepcopy(trainer._metrics),
        "args": dict(vars(trainer.args)),
        "state": dict(vars(trainer.state)),
        "accelerator": {n: id(x) for n, x in vars(trainer.accelerator).items()},
        "modules": [(n, id(m), m.training) for n, m in trainer.model.named_modules()],
        "parameters": [(n, id(p), p.tolist(), p.grad) for n, p in trainer.model.named_parameters()],
        "of the reference": [(n, id(p), p.grad) for n, p in trainer.ref_model.named_parameters()],
    }


@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_it_is_changed_in_the_end(training):
    trainer = made()
    trainer.model.train(training)
    before = state(trainer)
    diagnosis = diagnose(trainer, update=False)
    assert diagnosis.healthy, str(diagnosis)
    assert diagnosis.title == "Trainer"
    assert state(trainer) == before


def test_nothing_of_it_is_changed_after_an_error():
    trainer = made()

    def fails(*_):
        raise KeyError("mine")

    trainer._compute_loss = fails
    before = state(trainer)
    with pytest.raises(KeyError, match="mine"):
        ExaminedTrainer(trainer).run(world(ExaminedTrainer(trainer).ids))
    assert state(trainer) == before


def test_a_policy_that_is_its_own_reference():
    trainer = made()
    trainer.ref_model = trainer.model
    diagnosis = diagnose(trainer, update=False)
    (said,) = diagnosis.wrong
    assert said.fault == "policy-reference"
    assert "trainer.ref_model is trainer.model" in said.said


def test_another_temperature_than_that_of_its_settings():
    trainer = made(temperature=0.7)
    trainer.temperature = 0.9  # of the sampler
    (said,) = diagnose(trainer, update=False).wrong
    assert said.fault == "temperature"
    assert "The sampler's temperature is 0.9 (SimpleNamespace(temperature=...))" in said.said
    assert "computed at 0.7" in said.said
    assert said.line.text.startswith("return logits.log_softmax(-1)")


def test_the_temperature_of_the_sampler_that_was_made():
    trainer = made(temperature=0.7)
    trainer.temperature, trainer.generation_config = 0.9, SimpleNamespace(temperature=0.7)
    assert diagnose(trainer, update=False).healthy  # the other one is written where nothing reads it
    trainer.args.generation_kwargs = {"temperature": 0.7}
    assert ExaminedTrainer(trainer).declared.temperature == 0.9
    del trainer.args.generation_kwargs
    trainer.use_vllm = True
    assert ExaminedTrainer(trainer).declared.temperature == 0.9


def test_what_its_settings_say():
    trainer = made(top_p=0.9, top_k=40, gradient_accumulation_steps=4, steps_per_generation=8)
    trainer.num_iterations, trainer.loss_type = 3, "bnpo"
    declared = ExaminedTrainer(trainer).declared
    assert (declared.temperature, declared.top_p, declared.top_k) == (1.0, 0.9, 40)
    assert declared.updates == 6  # 8 micro-batches, 3 times each, 4 to an optimizer step
    assert (declared.beta, declared.accumulate) == (0.5, 4)
    assert declared.token_mean_of == "micro-batch"
    assert not declared.teacher
    assert not declared.engine
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    assert ExaminedTrainer(trainer).declared.engine
    plain = ExaminedTrainer(made(top_k=-1, top_p=None, steps_per_generation=1, gradient_accumulation_steps=4))
    assert (plain.declared.top_k, plain.declared.top_p, plain.declared.updates) == (0, 1.0, 1)
    assert plain.declared.token_mean_of == ""


def test_what_is_said_of_it_goes_before_its_settings():
    trainer = made(top_p=0.9)
    assert [f.fault for f in diagnose(trainer, update=False).wrong] == ["truncated-sampler"]
    assert diagnose(trainer, update=False, top_p=1.0).healthy
    assert [f.fault for f in diagnose(made(), update=False, temperature=0.5).wrong] == ["temperature"]


class Distillation:
    """A trainer with a teacher, which is given finished texts."""

    def __init__(self):
        stock = made()
        self.model, self.teacher_model = stock.model, Model()
        self.processing_class, self.args = stock.processing_class, stock.args
        self.accelerator, self.state = stock.accelerator, stock.state

    def compute_loss(self, model, inputs, num_items_in_batch):
        logits = model(inputs["input_ids"], inputs["attention_mask"]).logits[:, :-1]
        with torch.no_grad():
            teacher = self.teacher_model(inputs["input_ids"], inputs["attention_mask"]).logits[:, :-1]
        kl = (logits.softmax(-1) * (logits.log_softmax(-1) - teacher.log_softmax(-1))).sum(-1)
        return (kl * (inputs["labels"][:, 1:] != -100)).sum() / num_items_in_batch


def test_a_trainer_with_a_teacher():
    trainer = Distillation()
    diagnosis = diagnose(trainer, update=False)
    assert diagnosis.healthy, str(diagnosis)
    subject = ExaminedTrainer(trainer)
    assert subject.declared.teacher
    at = world(subject.ids)
    logits = at.rollout.logits.detach().clone().requires_grad_()
    p, q = logits.log_softmax(-1), at.rollout.ref_logits.log_softmax(-1)
    loss = ((p.exp() * (p - q)).sum(-1) * at.rollout.completion_mask).sum() / 18
    seen = subject.run(at, parts=2)
    torch.testing.assert_close(seen.completion, torch.autograd.grad(loss, logits)[0], rtol=1e-5, atol=1e-7)


def test_of_a_trainer_that_only_generates_sampler_and_state_are_examined():
    stock = made(min_p=0.3)
    trainer = SimpleNamespace(compute_loss=None, generation_config=SimpleNamespace(to_diff_dict=dict))
    for name in ("model", "ref_model", "args", "processing_class", "accelerator", "state", "beta"):
        setattr(trainer, name, getattr(stock, name))
    diagnosis = diagnose(trainer)
    assert [f.name for f in diagnosis.findings] == ["sampler", "loss"]
    assert diagnosis.findings[1].said.startswith("The loss of SimpleNamespace was not run")
    assert diagnosis.unread == "the loss of SimpleNamespace cannot be run on the small world"


@pytest.mark.usefixtures("as_installed")
def test_a_trainer_of_another_kind_is_refused():
    unfit = SimpleNamespace(compute_loss=None, args=None, model=Model())
    assert is_trainer(unfit)
    assert not is_trainer(Model())
    assert is_trainer(Trainer())
