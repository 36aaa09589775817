"""A step's batch under all three alignments, by hand, and under the names that trainers use."""

import pytest
import torch

from kl_companion.monitor.doctor.step import ALIGNMENTS
from kl_companion.monitor.doctor.step_batch import Count, StepBatch, is_known
from kl_companion.monitor.doctor.world import REWARDS, world

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


def test_a_copy_has_the_names_that_were_asked_for_and_numbers_that_move():
    names = ["completion_ids", "old_log_probs"]
    found = StepBatch(WORLD, "completion", 1.0, False, None, names)
    copied = {k: v.to("cpu") for k, v in found.items()}
    assert copied["completion_ids"].equal(found["completion_ids"])
    assert {*names, "input_ids", "advantages"} <= {**found}.keys()
    assert "rewards" not in copied
    assert (Count(4).to("cuda"), Count(4).item(), copied["prompt_length"]) == (4, 4, PROMPT)
    assert [is_known(x) for x in ("ref_logps", "lengths", "foo", "model")] == [True, True, False, False]


def test_a_wider_rectangle_and_another_order_are_the_same_answers():
    at = world(rewards=REWARDS, stale=0.1, padding=(1, 2), order=(5, 4, 3, 2, 1, 0))
    wide = StepBatch(at, "completion", 1.0, False, None)
    assert wide["input_ids"].shape == (6, PROMPT + 1 + SEQ + 2)
    assert wide["completion_mask"].sum(-1).tolist() == LENGTHS[::-1]
    torch.testing.assert_close(wide["old_log_probs"][:, :SEQ].flip(0), batch()["old_log_probs"])
    assert wide["advantages"].tolist() == pytest.approx(batch()["advantages"].flip(0).tolist())
    assert (wide["prompt_length"], wide["max_length"]) == (PROMPT + 1, SEQ)
