"""Dropout, references that move and coefficients that change, in a trainer in the form of TRL's."""

import copy
from types import SimpleNamespace

import pytest
import torch

from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.trainer_state import active_dropout, state
from kl_companion.monitor.doctor.trainers import ExaminedTrainer
from tests.support.small_steps import probe, step_of
from tests.support.stub_trainer import Model, made


class Callback:
    """A callback that does nothing."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **_):
        pass

    def on_step_begin(self, args, state, control, **_):
        pass

    def on_step_end(self, args, state, control, model=None, **_):
        pass


class Copies(Callback):
    def on_step_end(self, args, state, control, model=None, **_):
        self.trainer.ref_model.load_state_dict(model.state_dict())


class Follows(Callback):
    def on_step_end(self, args, state, control, model=None, **_):
        for mine, its in zip(self.trainer.ref_model.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(its.data, 0.5)


class Anneals(Callback):
    def on_step_begin(self, args, state, control, **_):
        self.trainer.beta = 0.5 * (1 - (state.global_step + 1) / state.max_steps)


class Adapts(Callback):
    def on_step_end(self, args, state, control, **_):
        self.trainer.beta *= 1.1


class Fails(Callback):
    def on_step_end(self, args, state, control, **_):
        raise KeyError("mine")


class Head(torch.nn.Module):
    """A model that transformers could have made: a vocabulary, and dropout before its head."""

    def __init__(self, rate):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.dropout, self.head = torch.nn.Dropout(rate), torch.nn.Linear(8, 20)
        self.config = SimpleNamespace(vocab_size=20)

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.head(self.dropout(self.embedding(input_ids))))


def findings_of(trainer):
    """The findings on the state of a trainer."""
    return list(state(Probe(ExaminedTrainer(trainer))))


def with_callback(kind):
    """A trainer with a callback, and its findings."""
    trainer = made()
    trainer.callback_handler = SimpleNamespace(callbacks=[kind(trainer)])
    return trainer, findings_of(trainer)


@pytest.mark.parametrize(
    ("kind", "level", "text"),
    [
        (Copies, "wrong", "makes the reference a copy of the policy: after three steps"),
        (Follows, "wrong", "has gone 87% of the way to the policy"),
        (Anneals, "wrong", "it is 0.5 in the settings, and 0 at the end of training"),
        (Adapts, "attention", "it is 0.5 in the settings, and 0.732 after four of its steps"),
        (Fails, "attention", "was not tried on the small world: it raises KeyError: 'mine'"),
    ],
)
def test_what_a_callback_changes(kind, level, text):
    trainer, (found,) = with_callback(kind)
    assert found.level == level
    assert text in found.said
    assert found.line is not None
    assert found.line.file == __file__
    assert trainer.beta == 0.5


def test_a_callback_that_changes_nothing_and_a_library_s():
    assert with_callback(Callback)[1] == []
    assert with_callback(lambda _: SimpleNamespace())[1] == []


def test_nothing_is_changed_by_callbacks_that_are_tried():
    trainer = made()
    before = copy.deepcopy(trainer.ref_model.state_dict())
    for kind in (Copies, Fails):
        trainer.callback_handler = SimpleNamespace(callbacks=[kind(trainer)])
        findings_of(trainer)
    assert all(torch.equal(x, before[name]) for name, x in trainer.ref_model.state_dict().items())
    assert vars(trainer.state) == {"num_input_tokens_seen": 5}


def test_a_reference_that_the_settings_synchronize():
    often = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}
    (found,) = findings_of(made(**often))
    assert (found.level, found.fault) == ("wrong", "reference-moves")
    assert "beta=0.5 has no effect" in found.said
    (found,) = findings_of(made(**often | {"ref_model_mixup_alpha": 0.6}))
    assert found.level == "attention"
    assert "every 1 steps it becomes 0.6 of the policy and 0.4 of itself" in found.said
    trainer = made(**often)
    trainer.beta = 0.0
    assert findings_of(trainer) == []
    assert findings_of(made(**often | {"sync_ref_model": False})) == []


def test_a_reference_with_parameters_of_the_policy():
    trainer = made()
    trainer.ref_model.lm_head = trainer.model.lm_head
    (found,) = findings_of(trainer)
    assert (found.level, found.fault) == ("wrong", "policy-reference")
    assert "shares 2 of its 3 parameters" in found.said


def test_dropout_of_policy_and_reference():
    trainer = made()
    trainer.model.dropout.p = 0.1
    trainer.ref_model.dropout.p = 0.2
    trainer.ref_model.eval()
    (found,) = findings_of(trainer)
    assert (found.level, found.fault) == ("wrong", "dropout")
    assert found.said.startswith("Dropout is active where the policy is scored: 1 layers, up to 0.1.")
    trainer.ref_model.train()
    policy, reference = findings_of(trainer)
    assert policy == found
    assert "The reference is in training mode and has dropout: 1 layers, up to 0.2" in reference.said
    trainer.model.dropout.p = 0.0
    trainer.ref_model = trainer.model
    assert findings_of(trainer) == []


def test_dropout_of_adapters_is_none_at_first():
    model = Model()
    model.lora_dropout, model.dropout.p = torch.nn.Dropout(0.05), 0.0
    trainer = made()
    trainer.model = model
    (found,) = findings_of(trainer)
    assert found.level == "attention"
    assert "Dropout of adapters" in found.said


def test_the_size_of_dropout_is_measured():
    assert active_dropout(Head(0.0)) is None
    model = Head(0.5).train()
    model.embedding.eval()
    other = Head(0.1)
    before = torch.get_rng_state()
    small, large = active_dropout(other), active_dropout(model)
    assert 0 < small.change < large.change
    assert (large.rate, large.layers, large.adapters) == (0.5, 1, False)
    assert torch.equal(torch.get_rng_state(), before)
    assert (model.training, model.embedding.training) == (True, False)
    attention = torch.nn.Module()
    attention.attention_dropout = 0.3
    assert active_dropout(attention) == (0.3, 1, False, None)


class Trainers(type(made())):
    """A trainer whose loss pulls the reference after the policy, and lowers beta."""

    def _compute_loss(self, model, inputs):
        with torch.no_grad():
            for mine, its in zip(self.ref_model.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
        self.beta *= 0.99
        return super()._compute_loss(model, inputs)


def test_a_loss_that_moves_the_reference_and_changes_beta():
    trainer = made()
    trainer.__class__ = Trainers
    examined = Probe(ExaminedTrainer(trainer))
    assert examined.plain.loss != 0
    moves, changes = state(examined)
    assert (moves.level, moves.fault) == ("wrong", "reference-moves")
    assert (changes.level, changes.fault) == ("attention", "beta-changes")
    assert {x.line.file for x in (moves, changes)} == {__file__}


def test_a_step_has_no_settings():
    assert list(state(probe(step_of()))) == []
