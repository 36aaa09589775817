"""Tables inside a real model: its own code goes on running, and afterwards everything is as it was."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kl_companion.monitor.doctor.in_place import changed, ids_of, lent
from kl_companion.monitor.doctor.tiny_model import Body
from kl_companion.monitor.doctor.tracing import POLICY
from kl_companion.monitor.doctor.world import world
from tests.support.stub_trainer import Model, Tokenizer

IDS = ids_of(Tokenizer())
WORLD = world(IDS)
LAYOUT = WORLD.layout()
PROMPT = LAYOUT.prompt_ids.shape[1]
INSIDE = LAYOUT.completion_mask.bool()


def completion_logits(model):
    """Of the world's tokens where an answer's are predicted."""
    logits = model(LAYOUT.input_ids, LAYOUT.attention_mask).logits[:, PROMPT - 1 : -1]
    return logits[..., list(IDS.live)][INSIDE]


def state(model):
    """All that a model is, bit for bit."""
    return (
        [(n, id(m), m.training) for n, m in model.named_modules()],
        [(n, id(p), p.tolist(), p.grad) for n, p in model.named_parameters()],
        sorted(vars(model)),
        model(torch.tensor([[3, 4, 5]])).logits.tolist(),
    )


@pytest.mark.parametrize("training", [True, False])
def test_its_own_code_runs_on_the_table_and_afterwards_it_is_the_same(training):
    model = Model(scale=3.0).train(training)
    before = state(model)
    body = Body(WORLD, POLICY)
    with lent(model, body):
        assert completion_logits(model).equal(3.0 * WORLD.rollout.logits[INSIDE])
        assert model.training == training
        completion_logits(model).sum().backward()
    assert body.completion.grad.abs().sum() > 0
    assert state(model) == before


def test_it_is_given_back_after_an_error():
    model = Model()
    before = state(model)
    with pytest.raises(KeyError), lent(model, Body(WORLD, POLICY)):
        raise KeyError
    assert state(model) == before


class WithAdapters(nn.Module):
    """As peft wraps a model."""

    def __init__(self):
        super().__init__()
        self.base_model = Model()
        self.active = "default"

    def get_base_model(self):
        return self.base_model

    @contextmanager
    def disable_adapter(self):
        yield

    def set_adapter(self, name):
        self.active = name

    def forward(self, *args):
        return self.base_model(*args)


def test_adapters_are_turned_off_and_changed():
    model = WithAdapters()
    before = state(model)
    policy, reference = WORLD.rollout.logits[INSIDE], WORLD.rollout.ref_logits[INSIDE]
    with lent(model, Body(WORLD, POLICY)):
        assert completion_logits(model).equal(policy)
        with model.disable_adapter():
            assert completion_logits(model).equal(reference)
        assert completion_logits(model).equal(policy)
        model.set_adapter("ref")
        assert completion_logits(model).equal(reference)
        with model.disable_adapter():
            pass
        assert completion_logits(model).equal(reference)  # as before it was turned off
        model.set_adapter("default")
        assert completion_logits(model).equal(policy)
        assert model.active == "default"
    assert state(model) == before
    model.set_adapter("ref")
    assert model.active == "ref"


class WithoutHead(nn.Linear):
    base_model_prefix = "nothing"

    def get_output_embeddings(self):
        return None


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("model", [nn.Linear(2, 2), WithoutHead(2, 2)])
def test_a_model_without_blocks_or_head_is_refused(model):
    with (
        pytest.raises(ValueError, match="has no blocks and output layer that can be lent"),
        lent(model, Body(WORLD, POLICY)),
    ):
        pass


def tokenizer(**changes):
    """Ten tokens."""

    class Ten(SimpleNamespace):
        def __len__(self):
            return 10

    return Ten(**{"eos_token_id": 9, "pad_token_id": 0, "all_special_ids": [0, 1, 9], **changes})


def test_ids_are_the_tokenizers_own():
    found = ids_of(tokenizer())
    assert (found.pad, found.live, found.digits) == (0, (9, 2, 3, 4), (5, 6, 7))
    assert ids_of(SimpleNamespace(tokenizer=tokenizer())) == found  # a processor
    without = ids_of(tokenizer(pad_token_id=None, all_special_ids=[9]))
    assert (without.pad, without.live, without.digits) == (9, (9, 0, 1, 2), (3, 4, 5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eos_token_id": None}, "has no eos_token_id, expected one: answers end with it"),
        ({"all_special_ids": [0, 1, 2, 3, 9]}, "has 5 tokens besides special ones, expected at least 6"),
    ],
)
def test_a_tokenizer_without_an_end_or_with_too_few_tokens_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        ids_of(tokenizer(**changes))


def test_attributes_are_changed_for_a_while():
    class Owner:
        shared = 1

    owner = Owner()
    owner.mine = 2
    with changed(owner, shared=5, mine=6, new=7):
        assert (owner.shared, owner.mine, owner.new) == (5, 6, 7)
    assert vars(owner) == {"mine": 2}
    assert owner.shared == 1
    with pytest.raises(KeyError), changed(owner, mine=6):
        raise KeyError
    assert owner.mine == 2
