"""A step's batch under all three alignments, by hand; how a step is called, and what is refused."""

import pytest
import torch

from kl_companion.monitor.doctor.step import ALIGNMENTS, ExaminedStep, StepBatch
from kl_companion.monitor.doctor.tracing import Trace
from kl_companion.monitor.doctor.world import REWARDS, Ids, world

WORLD = world(rewards=REWARDS, stale=0.1)
PROMPT, SEQ = 4, 4
LENGTHS = [2, 2, 3, 4, 4, 3]
BEFORE = {"completion": 0, "full": PROMPT, "shifted": PROMPT - 1}


def batch(alignment="completion", temperature=1.0, per_token=False, advantages=None):
    return StepBatch(WORLD, alignment, temperature, per_token, advantages)


def log_probs(logits, temperature):
    """Of the sampled tokens, 0 behind the end: [6, 4]."""
    out = torch.zeros(6, SEQ, dtype=torch.float64)
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            scores = (logits[i, t] / temperature).exp()
            out[i, t] = (scores[WORLD.rollout.tokens[i, t]] / scores.sum()).log()
    return out


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_masks_and_log_probs_are_aligned(alignment):
    found, zeros = batch(alignment, 0.7), [0] * BEFORE[alignment]
    mask = [zeros + [1] * n + [0] * (SEQ - n) for n in LENGTHS]
    assert found["completion_mask"].tolist() == mask
    for name, logits in (("old_log_probs", "behavior_logits"), ("ref_log_probs", "ref_logits")):
        wanted = log_probs(getattr(WORLD.rollout, logits), 0.7)
        wanted = torch.cat([torch.zeros(6, len(zeros), dtype=torch.float64), wanted], 1)
        torch.testing.assert_close(found[name], wanted)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_ids_and_labels_are_of_prompt_and_answer(alignment):
    found = batch(alignment)
    assert found["input_ids"][1].tolist() == [1, 6, 5, 7, 4, 1, 1, 1]
    assert found["attention_mask"][1].tolist() == [0, 1, 1, 1, 1, 1, 0, 0]
    assert found["labels"][1].tolist() == [-100] * 4 + [4, 1, -100, -100]
    assert found["position_ids"][1].tolist() == [0, 0, 1, 2, 3, 4, 4, 4]
    assert found["prompt_ids"].shape == found["prompt_mask"].shape == (6, PROMPT)
    assert (found["prompt_length"], found["num_items_in_batch"], found["answers_in_batch"]) == (4, 18, 6)


def test_names_that_trainers_use():
    found = batch()
    assert found["response_mask"] is found["loss_mask"]
    assert found["response_mask"].tolist() == found["completion_mask"].tolist()
    assert found.completion_ids.tolist() == WORLD.layout().completion_ids.tolist()
    assert found["scores"].tolist() == REWARDS.tolist()
    assert found["advantages"].tolist() == pytest.approx((REWARDS - REWARDS.mean()).tolist())
    assert found["adv"] is found["advantages"]
    assert found["response_lengths"].tolist() == LENGTHS
    assert found.to("cuda").get("nothing") is None
    assert found.get("nothing", 3) == 3
    assert found.get("rewards").tolist() == REWARDS.tolist()
    assert "ref_logprobs" in found
    assert "nothing" not in found
    assert 3 not in found
    with pytest.raises(AttributeError):
        _ = found._private


def test_advantages_for_every_token_or_made_by_the_step():
    found = batch("shifted", per_token=True)
    each = (REWARDS - REWARDS.mean()).unsqueeze(-1)
    torch.testing.assert_close(found["advantages"], each * found["completion_mask"])
    made = batch(advantages=lambda rewards, mask: rewards.unsqueeze(-1) * mask)
    torch.testing.assert_close(made["advantages"], REWARDS.unsqueeze(-1) * WORLD.layout().completion_mask)


def test_a_part_of_a_batch_keeps_what_is_of_the_whole():
    part = batch().rows([1, 3])
    assert part["input_ids"].tolist() == batch()["input_ids"][[1, 3]].tolist()
    assert part["advantages"].tolist() == batch()["advantages"][[1, 3]].tolist()
    assert part["old_log_probs"].equal(batch()["old_log_probs"][[1, 3]])
    assert (part["num_items_in_batch"], part["num_tokens"], part["batch_size"]) == (18, 6, 2)
    assert part["group_size"] == 6


def test_a_name_that_is_not_known():
    with pytest.raises(
        ValueError, match="asked the batch for 'foo', which the doctor does not know"
    ) as error:
        batch()["foo"]
    listed = str(error.value).split("expected one of ")[1].split(", by these")[0].split(", ")
    assert {"input_ids", "completion_mask", "old_log_probs"} - {*listed} == {"old_log_probs"}
    assert len(listed) == len({*listed})


def first_token(model, batch):
    """The log-prob of every answer's first token, times its advantage."""
    logits = model(batch["input_ids"], batch["attention_mask"]).logits[:, PROMPT - 1]
    logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"][:, :1]).squeeze(-1)
    return -(batch["advantages"] * logp).mean()


def expected_first_token():
    rollout = WORLD.rollout
    out = torch.zeros_like(rollout.logits)
    advantages = REWARDS - REWARDS.mean()
    for i in range(6):
        one = torch.zeros(4, dtype=torch.float64)
        one[rollout.tokens[i, 0]] = 1.0
        out[i, 0] = -advantages[i] * (one - rollout.logits[i, 0].softmax(-1)) / 6
    return out


def test_a_run_gives_the_gradient_by_every_prediction():
    seen = ExaminedStep(first_token).run(WORLD)
    torch.testing.assert_close(seen.completion, expected_first_token())
    assert (seen.prompt, seen.beyond, seen.stray, seen.reference) == (0, 0, 0, 0)


def test_micro_batches_are_averaged_or_added_up():
    averaged = ExaminedStep(first_token).run(WORLD, parts=2)
    torch.testing.assert_close(averaged.completion, expected_first_token())
    summed = ExaminedStep(first_token, summed=True).run(WORLD, parts=2)
    torch.testing.assert_close(summed.completion, 2 * expected_first_token())
    assert summed.loss == pytest.approx(2 * averaged.loss)


def per_token(model, ref_model, inputs):
    """Wants advantages [batch, seq]."""
    logits = model(inputs["input_ids"], inputs["attention_mask"]).logits[:, PROMPT - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)
    return -(inputs["advantages"] * logp * inputs["completion_mask"]).sum(-1).mean()


def test_a_step_is_given_advantages_in_the_shape_that_it_takes():
    subject = ExaminedStep(per_token)
    with Trace() as trace:
        pass
    seen = subject.run(WORLD, trace=trace)
    assert seen.completion[:, 1].abs().sum() > 0
    assert len(trace.forwards) == 1  # the attempt that failed is forgotten
    broken = ExaminedStep(lambda model, batch: torch.ones(2) + torch.ones(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        broken.run(WORLD)


def test_a_reference_that_the_step_holds_is_lent():
    module = torch.nn.Linear(2, 2)
    forward = module.forward

    def step(model, batch):
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        mine, theirs = model(**given).logits, module(**given).logits.detach()
        return ((mine - theirs) ** 2)[:, PROMPT - 1 : -1].sum()

    seen = ExaminedStep(step, reference=module).run(WORLD)
    assert seen.completion.abs().sum() > 0
    assert module.forward == forward
    assert "forward" not in vars(module)


def test_a_reference_with_a_forward_of_its_own_gets_it_back():
    module = torch.nn.Linear(2, 2)
    module.forward = own = lambda **_: None
    ExaminedStep(first_token, reference=module).run(WORLD)
    assert module.forward is own


def test_the_order_of_its_parameters_is_free():
    def step(batch, ref_policy, actor, beta=0.1, *rest, **more):
        return first_token(actor, batch)

    torch.testing.assert_close(ExaminedStep(step).run(WORLD).completion, expected_first_token())


def test_ids_of_the_steps_own():
    ids = Ids(pad=0, live=(2, 30, 31, 32), digits=(40, 41, 42))
    found = {}

    def step(model, batch):
        found.update(ids=batch["input_ids"])
        return first_token(model, batch)

    ExaminedStep(step, ids=ids).run(world(ids))
    assert {*found["ids"].flatten().tolist()} == {0, 2, 30, 31, 32, 40, 41, 42}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda batch: 0, "has the parameters batch, expected a model and a batch"),
        (lambda: 0, r"has the parameters \(none\), expected a model and a batch"),
        (lambda model, ref_model: 0, "has the parameters model, ref_model, expected a model and a batch"),
        (lambda model, batch, thing: 0, "has the parameter 'thing', expected a model"),
    ],
)
@pytest.mark.usefixtures("as_installed")
def test_functions_with_other_parameters_are_refused(step, said):
    with pytest.raises(ValueError, match=said):
        ExaminedStep(step)
