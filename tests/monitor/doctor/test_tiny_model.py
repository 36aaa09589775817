"""The model of tables: every prefix gives its row in whatever form it comes; what is no prefix is named."""

import pytest
import torch

from kl_companion.monitor.doctor.tiny_model import Output, TinyModel, head_of
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Trace
from kl_companion.monitor.doctor.world import Ids, world
from tests.support.data import data

DATA = data(__file__)

WORLD = world()
LAYOUT = WORLD.layout()
PROMPT = LAYOUT.prompt_ids.shape[1]
LIVE = list(WORLD.ids.live)
INSIDE = LAYOUT.completion_mask.bool()


def model(role=POLICY, at=WORLD):
    return TinyModel(at, role)


def strays(call):
    """What a call saw that it must not see."""
    with Trace() as trace:
        call()
    return trace.forwards[-1].strays


def check(logits, of=WORLD.rollout.logits):
    """Logits [6, seq, vocab] of the completion's tokens are the table's rows, and of no other token."""
    assert logits[..., LIVE][INSIDE].equal(of[INSIDE])
    others = [i for i in range(WORLD.ids.size) if i not in LIVE]
    assert (logits[..., others][INSIDE] < -25).all()


@pytest.mark.parametrize("role", [POLICY, REFERENCE])
def test_under_padding_on_the_left(role):
    out = model(role)(input_ids=LAYOUT.input_ids, attention_mask=LAYOUT.attention_mask)
    logits = out.logits[:, PROMPT - 1 : -1]
    check(logits, WORLD.rollout.logits if role == POLICY else WORLD.rollout.ref_logits)
    seen = strays(lambda: model(role)(LAYOUT.input_ids, LAYOUT.attention_mask))
    assert seen == ()


def test_the_last_logits_or_some_of_them():
    full = model()(LAYOUT.input_ids, LAYOUT.attention_mask).logits
    last = model()(LAYOUT.input_ids, LAYOUT.attention_mask, logits_to_keep=3).logits
    assert last.equal(full[:, -3:])
    some = model()(LAYOUT.input_ids, LAYOUT.attention_mask, logits_to_keep=torch.tensor([1, 5])).logits
    assert some.equal(full[:, [1, 5]])


def test_the_mean_cross_entropy_of_labels():
    labels = LAYOUT.input_ids.masked_fill(LAYOUT.attention_mask == 0, -100)
    labels[:, :PROMPT] = -100
    out = model()(LAYOUT.input_ids, LAYOUT.attention_mask, labels=labels)
    logp = WORLD.rollout.logits.log_softmax(-1).gather(-1, WORLD.rollout.tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(out.loss, -logp[INSIDE].mean())
    assert out[0] is out.loss
    assert model()(LAYOUT.input_ids, LAYOUT.attention_mask).loss is None


def causal_mask():
    """[6, length, length] of who sees whom."""
    keys = LAYOUT.attention_mask.bool()
    length = keys.shape[1]
    return torch.ones(length, length).tril().bool() & keys.unsqueeze(1) & keys.unsqueeze(2)


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_with_a_mask_of_who_sees_whom(heads, added):
    mask = causal_mask()
    mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if added else mask.long()
    mask = mask.unsqueeze(1) if heads else mask
    check(model()(LAYOUT.input_ids, mask).logits[:, PROMPT - 1 : -1])
    assert strays(lambda: model()(LAYOUT.input_ids, mask)) == ()


def packed():
    """The answers in one row, without padding, and the places of their tokens."""
    inside = LAYOUT.attention_mask.bool()
    places = (LAYOUT.attention_mask.cumsum(-1) - 1)[inside]
    return LAYOUT.input_ids[inside].unsqueeze(0), places.unsqueeze(0), inside


def test_in_one_row_that_position_ids_divide():
    ids, places, inside = packed()
    logits = model()(ids, position_ids=places).logits[0]
    back = torch.zeros(*inside.shape, logits.shape[-1], dtype=torch.float64).masked_scatter(
        inside.unsqueeze(-1), logits
    )
    check(back[:, PROMPT - 1 : -1])
    assert strays(lambda: model()(ids, position_ids=places)) == ()


def test_in_one_row_that_nothing_divides():
    ids, _, _ = packed()
    assert strays(lambda: model()(ids)) == ("another answer of the same row",)


def test_padding_that_is_attended_to():
    assert strays(lambda: model()(LAYOUT.input_ids)) == ("padding",)


@pytest.mark.parametrize(
    ("ids", "said"),
    DATA["prefixes"],
)
def test_what_is_no_prefix_is_named(ids, said):
    assert strays(lambda: model()(torch.tensor([ids]))) == ((said,) if said else ())


def test_gradients_tell_the_prompt_from_what_is_beyond_the_end():
    tiny = model()
    logits = tiny(LAYOUT.input_ids, LAYOUT.attention_mask).logits
    logp = logits.log_softmax(-1)[:, :-1].gather(-1, LAYOUT.input_ids[:, 1:, None]).squeeze(-1)

    def touched(chosen):
        found = torch.autograd.grad(
            (logp * chosen).sum(), list(tiny.model.parameters()), allow_unused=True, retain_graph=True
        )
        names = [n for n, _ in tiny.model.named_parameters()]
        return {n for n, x in zip(names, found, strict=True) if x is not None and x.abs().sum() > 0}

    predicted = LAYOUT.attention_mask[:, 1:].bool()
    answers = torch.zeros_like(predicted)
    answers[:, PROMPT - 1 :] = INSIDE
    assert touched(answers) == {"completion"}
    prompt = predicted & ~answers & LAYOUT.attention_mask[:, :-1].bool()
    assert touched(prompt) == {"prompt"}
    after = torch.zeros_like(predicted)
    after[:, PROMPT - 1 :] = ~INSIDE
    assert touched(after) == {"beyond"}


def test_every_pass_is_noted_with_whose_it_is():
    policy, reference = model(), model(REFERENCE)
    ids = LAYOUT.input_ids, LAYOUT.attention_mask
    with Trace() as trace:
        kept = policy(*ids).logits
        with torch.no_grad():
            _ = policy(*ids).logits * 2
            reference(*ids)
        with policy.disable_adapter():
            policy(*ids)
        trained = reference(*ids).logits
        assert (kept * 1 + trained).sum().requires_grad
    assert [(f.model, f.base) for f in trace.forwards] == [
        ("policy", False),
        ("policy", False),
        ("reference", False),
        ("policy", True),
        ("reference", False),
    ]
    assert [f.gradient for f in trace.forwards if not f.base] == [True, False, False, True]
    assert trace.forwards[0].line.file == __file__
    assert "kept = policy" in trace.forwards[0].line.text
    assert {x for op in trace.operations for x in op.all_origins} == {POLICY, FROZEN, REFERENCE}


def test_without_adapters_the_policy_is_the_reference_until_they_are_merged():
    tiny, ids = model(), (LAYOUT.input_ids, LAYOUT.attention_mask)
    with tiny.disable_adapter():
        check(tiny(*ids).logits[:, PROMPT - 1 : -1], WORLD.rollout.ref_logits)
    check(tiny(*ids).logits[:, PROMPT - 1 : -1])
    with Trace() as trace:
        assert tiny.merge_and_unload() is tiny
    assert trace.merged.text == "assert tiny.merge_and_unload() is tiny"
    with tiny.disable_adapter():
        check(tiny(*ids).logits[:, PROMPT - 1 : -1])


def test_ids_of_another_vocabulary():
    at = world(Ids(pad=0, live=(2, 30, 31, 32), digits=(40, 41, 42)))
    layout = at.layout()
    out = model(at=at)(input_ids=layout.input_ids, attention_mask=layout.attention_mask)
    assert out.logits.shape[-1] == 43
    logits = out.logits[:, PROMPT - 1 : -1][..., [2, 30, 31, 32]]
    assert logits[INSIDE].equal(at.rollout.logits[INSIDE])


def test_the_head_is_not_trained_and_differs_between_the_models_off_the_answers():
    policy, reference = head_of(WORLD, POLICY), head_of(WORLD, REFERENCE)
    assert not any(p.requires_grad for p in policy.parameters())
    assert (policy.bias - reference.bias)[[1, 5, 6, 7]].tolist() == [0.0, -1.0, -1.0, -1.0]
    assert policy.bias[0] == reference.bias[0] < -9000


def test_outputs_are_read_by_name_attribute_and_number():
    out = Output(logits=1, past_key_values=None, hidden_states=(2,))
    assert (out.logits, out["logits"], out[0], out[1], out[:1]) == (1, 1, 1, (2,), [1])
    with pytest.raises(AttributeError, match="output has no loss, it has logits, past_key_values"):
        _ = out.loss
