"""One batch that answers to the names of trainers."""

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.reading.arguments import Given
from kl_companion.auditing.reading.batches import UserBatch
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.subject import as_loss, as_subject
from kl_companion.rollout import Rollout
from kl_companion.tabular.populations import population_rollout, population_tree

ROLLOUT = population_rollout(population_tree(3, 2, parts=4, eos=True, off_policy=True))


def made(**mapped):
    read = {}
    return UserBatch.around(Given(ROLLOUT, Layout()), mapped, read), read


def test_a_name_is_a_key_or_an_attribute_and_is_noted():
    batch, read = made()
    for x in (batch["old_log_probs"], batch.old_log_probs, batch.get("old_log_probs")):
        torch.testing.assert_close(x, ROLLOUT.behavior_logp)
    assert {n: r.role for n, r in read.items()} == {"old_log_probs": "behavior_logp"}
    assert batch["batch"] is batch.batch is batch.meta_info is batch.to("cpu") is batch
    assert set(read) == {"old_log_probs"}
    assert "response_mask" in batch
    assert "nothing" not in batch
    assert batch.get("nothing", 3) == 3
    assert len(batch) == len(ROLLOUT.tokens)
    assert {"logp", "rewards", "tokens"} <= set(batch.keys())


def test_it_is_a_rollout_too():
    batch, _ = made()
    assert isinstance(batch, Rollout)
    assert batch.logp is ROLLOUT.logp
    torch.testing.assert_close(batch.sampled_from, ROLLOUT.sampled_from)


def test_a_map_goes_before_the_name():
    batch, read = made(log_probs="ref_logp", x="rewards")
    torch.testing.assert_close(batch.log_probs, ROLLOUT.ref_logp)
    torch.testing.assert_close(batch["x"], ROLLOUT.rewards)
    assert [r.note for r in read.values()] == ["as mapped", "as mapped"]


def test_what_is_not_read_is_refused():
    batch, _ = made()
    with pytest.raises(
        ValueError, match="the batch has parameters whose meaning is not clear:\n  target_logp"
    ):
        batch["target_logp"]
    with pytest.raises(TypeError, match="the batch was indexed by 0"):
        batch[0]
    with pytest.raises(AttributeError):
        _ = batch._private


def by_key(batch):
    kl = (batch["log_probs"] - batch["ref_log_prob"]) ** 2 / 2
    return (kl * batch["response_mask"]).sum(-1).mean()


def by_attribute(self_made):
    data = self_made.batch
    return ((data.log_probs - data.ref_log_prob) ** 2 / 2 * data.response_mask).sum(-1).mean()


def own_names(rollout):
    return ((rollout.logp - rollout.ref_logp) ** 2 / 2 * rollout.completion_mask).sum(-1).mean()


def negated(batch):
    kl = (batch["log_probs"] - batch["ref_log_prob"]) ** 2 / 2
    return kl.masked_fill(~batch["response_mask"], 0.0).sum(-1).mean()


@pytest.mark.parametrize("loss", [by_key, by_attribute, own_names, negated])
def test_losses_of_a_batch(loss):
    wanted = ((ROLLOUT.logp - ROLLOUT.ref_logp) ** 2 / 2 * ROLLOUT.completion_mask).sum(-1).mean()
    assert as_loss(loss)(ROLLOUT).item() == pytest.approx(wanted.item(), rel=1e-12)


def test_the_keys_are_read_and_their_layout_is_found():
    reading = as_subject(negated).reading
    assert {r.name: r.role for r in reading.reads} == {
        "log_probs": "logp",
        "ref_log_prob": "ref_logp",
        "response_mask": "completion_mask",
    }
    assert reading.layout.mask is torch.bool


def test_two_names_for_one_thing_are_refused():
    def twice(batch, ref_logp):
        return (batch["log_probs"] - batch["ref_log_prob"]) * ref_logp

    with pytest.raises(ValueError, match=r"batch\.ref_log_prob: a parameter is read as the same already"):
        as_loss(twice)

    def pair(batch):
        return batch["ref_log_prob"] * batch["teacher_logps"] * batch["log_probs"]

    with pytest.raises(ValueError, match="are read as the same"):
        as_loss(pair)
    as_loss(pair, roles={"teacher_logps": "behavior_logp"})


def distilled(logits, teacher_logits, no_model_inputs):
    mask = (no_model_inputs["label"] != -100).int()
    each = teacher_logits.softmax(-1) * (teacher_logits.log_softmax(-1) - logits.log_softmax(-1))
    return (each.sum(-1) * mask).sum() / mask.sum()


def sampled(stuff, log_probs):
    return ((log_probs - stuff.ref_log_prob) ** 2 / 2 * stuff.response_mask).sum(-1).mean()


@pytest.mark.parametrize("role", ["batch", "rollout"])
@pytest.mark.parametrize(
    ("loss", "name", "wanted"),
    [(distilled, "no_model_inputs", "token_forward_kl"), (sampled, "stuff", "token_reverse_kl")],
)
def test_a_parameter_that_is_mapped_to_a_batch_gets_one(loss, name, wanted, role):
    """Beside other tensors, as distillation code has it."""
    found = audit(loss, off_policy=False, scale=1.0, roles={name: role})
    assert set(found.matches) == {wanted}


class Trainer:
    """As a trainer of sampled answers is written; its constructor wants a model."""

    def __init__(self, model, args):
        self.beta = args.load(model).beta

    def logps(self, model, ids, attention_mask, keep):
        logits = model(input_ids=ids, attention_mask=attention_mask).logits[:, :-1][:, -keep:]
        return logits.log_softmax(-1).gather(-1, ids[:, -keep:].unsqueeze(-1)).squeeze(-1)

    def compute_loss(self, model, inputs, return_outputs=False):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logps = self.logps(model, ids, attention_mask, inputs["completion_ids"].size(1))
        kl = 0.5 * (logps - inputs["ref_per_token_logps"]) ** 2
        self._metrics["kl"].append(self.accelerator.gather(kl).mean().item())
        return self.beta * (kl * inputs["completion_mask"]).sum(1).mean()


class Experienced:
    def __init__(self, kl_weight: float):
        self.kl_weight = kl_weight

    def __call__(self, log_probs, exp):
        ratio = (log_probs - exp.action_log_probs).exp().detach()
        each = ratio * (log_probs - exp.log_probs_ref) ** 2 / 2
        return self.kl_weight * (each * exp.action_mask).sum(-1).mean()


def optioned(logp, ref_logp, config=None):
    return config.kl_coef * (logp - ref_logp) ** 2 / 2


# by hand: half a square has the gradient of the reverse KL; with the detached ratio on stale samples too
@pytest.mark.parametrize(
    ("loss", "options", "role", "off_policy"),
    [
        (Trainer.compute_loss, {"beta": 1.0}, "outputs", False),
        (Experienced, {}, "behavior_logp", True),
        (optioned, {}, "logp", False),
    ],
)
def test_a_model_an_experience_and_options_without_a_value(loss, options, role, off_policy):
    found = audit(loss, options=options, off_policy=off_policy, scale=1.0)
    assert found.matches == {"token_reverse_kl": 1.0}
    assert role in {r.role for r in found.reading.reads}
